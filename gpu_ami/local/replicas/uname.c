/*
 * gpu-ami: uname(2) with the release of a tree's own kernel, for programs that run in the tree under the host's kernel. No
 * C library's headers are needed. 63: SYS_uname on x86_64; six fields of 65 bytes, of which the third is the release.
 */
long syscall(long number, ...);
char *strcpy(char *to, const char *from);

int uname(char (*fields)[65])
{
	long failed = syscall(63, fields);

	if (!failed)
		strcpy(fields[2], RELEASE);
	return failed;
}
