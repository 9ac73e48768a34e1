/* What libcuda and libnvidia-ml need of libc, declared here: headers of a newer libc would rename some of it. */
#ifndef DRIVER_FILES_SYSTEM_H
#define DRIVER_FILES_SYSTEM_H

#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))
#define DEVICES 64

/* struct dirent of 64-bit Linux */
struct entry {
	uint64_t inode, offset;
	uint16_t length;
	uint8_t kind;
	char name[256];
};

void *opendir(const char *path);
struct entry *readdir(void *folder);
int closedir(void *folder);
int open(const char *path, int flags, ...);
long read(int file, void *data, size_t bytes);
int close(int file);
int pause(void);
char *getenv(const char *name);
int *__errno_location(void);
void *mmap(void *where, size_t bytes, int protection, int flags, int file, long offset);
int munmap(void *where, size_t bytes);
void *memcpy(void *target, const void *source, size_t bytes);
void *memset(void *target, int byte, size_t bytes);
int memcmp(const void *one, const void *other, size_t bytes);
size_t strlen(const char *text);
int strcmp(const char *one, const char *other);
int strncmp(const char *one, const char *other, size_t bytes);
char *strchr(const char *text, int byte);
char *strstr(const char *text, const char *part);
long time(long *seconds);
unsigned long strtoul(const char *text, char **end, int base);
int snprintf(char *target, size_t bytes, const char *format, ...);

enum { READ_ONLY = 0, READ_WRITE = 2, READABLE_WRITABLE = 3, PRIVATE_ANONYMOUS = 0x22 };
enum { NOT_PERMITTED = 1, NO_ACCESS = 13 }; /* errno: EPERM, EACCES */

#endif
