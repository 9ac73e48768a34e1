/*
 * gpu-ami: what a program in a tree is told by this library instead of by the host: uname(2) has the release of the tree's own
 * kernel, and PROGRAM, if one is named, is another one, STAND_IN, whenever it is executed. No C library's headers are needed.
 * The numbers of its two system calls are the architecture's; uname fills six fields of 65 bytes, of which the third is the release.
 */
#ifdef __aarch64__
#define SYS_UNAME 160
#define SYS_EXECVE 221
#else
#define SYS_UNAME 63
#define SYS_EXECVE 59
#endif

long syscall(long number, ...);
char *strcpy(char *to, const char *from);
int strcmp(const char *one, const char *other);

int uname(char (*fields)[65])
{
	long failed = syscall(SYS_UNAME, fields);

	if (!failed)
		strcpy(fields[2], RELEASE);
	return failed;
}

#ifdef PROGRAM
int execve(const char *path, char *const arguments[], char *const environment[])
{
	return syscall(SYS_EXECVE, strcmp(path, PROGRAM) ? path : STAND_IN, arguments, environment);
}
#endif
