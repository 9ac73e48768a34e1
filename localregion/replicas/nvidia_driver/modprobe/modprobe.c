/* gpu-ami replica: loads NVIDIA's modules and makes their device nodes, for whoever may not (the file is setuid root).
 *
 * -c MINOR: /dev/nvidia<minor>, 255 for /dev/nvidiactl; with -u the minor of /dev/nvidia-uvm, and the next one of
 * /dev/nvidia-uvm-tools. -u: nvidia-uvm instead of nvidia. Owner and mode are those of the driver's parameters. Of the
 * original's options it lacks -m, -s, -l, -f and -a. Without libc, so that it runs on every system.
 * After https://github.com/NVIDIA/nvidia-modprobe (nvidia-modprobe.c, modprobe-utils; 610.43.03), whose text is not used.
 */
#include <stddef.h>
#include <stdint.h>

enum { HERE = -100, MINORS = 64, CONTROL = 255, FRONTEND = 195, CHARACTER = 0020000, SIGCHLD = 17, TABLE = 65536 };

#if defined(__x86_64__)
enum {
	READ = 0, WRITE = 1, CLOSE = 3, CLONE = 56, EXECVE = 59, EXIT = 60, WAIT4 = 61, SETUID = 105, OPENAT = 257,
	MKDIRAT = 258, MKNODAT = 259, FCHOWNAT = 260, UNLINKAT = 263, SYMLINKAT = 266, FCHMODAT = 268,
	STATX = 332
};

static long call(long number, long a, long b, long c, long d, long e)
{
	register long four __asm__("r10") = d;
	register long five __asm__("r8") = e;
	long result;

	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(four), "r"(five)
			 : "rcx", "r11", "memory");
	return result;
}

__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall run\n");
#elif defined(__aarch64__)
enum {
	READ = 63, WRITE = 64, CLOSE = 57, CLONE = 220, EXECVE = 221, EXIT = 93, WAIT4 = 260, SETUID = 146, OPENAT = 56,
	MKDIRAT = 34, MKNODAT = 33, FCHOWNAT = 54, UNLINKAT = 35, SYMLINKAT = 36, FCHMODAT = 53,
	STATX = 291
};

static long call(long number, long a, long b, long c, long d, long e)
{
	register long eight __asm__("x8") = number;
	register long zero __asm__("x0") = a;
	register long one __asm__("x1") = b;
	register long two __asm__("x2") = c;
	register long three __asm__("x3") = d;
	register long four __asm__("x4") = e;

	__asm__ volatile("svc 0" : "+r"(zero) : "r"(eight), "r"(one), "r"(two), "r"(three), "r"(four) : "memory");
	return zero;
}

__asm__(".globl _start\n_start:\n\tmov x29, #0\n\tmov x30, #0\n\tmov x0, sp\n\tbl run\n");
#endif

/* struct statx of the kernel, as far as it is read */
struct status {
	uint32_t mask, block_size;
	uint64_t attributes;
	uint32_t links, owner, group;
	uint16_t mode, spare;
	uint64_t rest[12];
	uint32_t rdev_major, rdev_minor;
	uint8_t more[120];
};

static char text[TABLE];

static size_t length(const char *word)
{
	size_t count = 0;

	while (word[count])
		count++;
	return count;
}

static int same(const char *one, const char *other)
{
	while (*one && *one == *other)
		one++, other++;
	return *one == *other;
}

static int begins(const char *line, const char *word)
{
	while (*word)
		if (*line++ != *word++)
			return 0;
	return 1;
}

static void print(int file, const char *word)
{
	call(WRITE, file, (long)word, (long)length(word), 0, 0);
}

static __attribute__((noreturn)) void leave(int status)
{
	for (;;)
		call(EXIT, status, 0, 0, 0, 0);
}

static void append(char *target, const char *word)
{
	target += length(target);
	while ((*target++ = *word++))
		;
}

static void append_number(char *target, long value)
{
	char digits[24];
	size_t at = sizeof(digits);

	digits[--at] = 0;
	do
		digits[--at] = (char)('0' + value % 10);
	while (value /= 10);
	append(target, digits + at);
}

/* The number at the beginning of a text; -1: there is none. */
static long number(const char *word)
{
	long value = 0;

	while (*word == ' ' || *word == '\t')
		word++;
	if (*word < '0' || *word > '9')
		return -1;
	while (*word >= '0' && *word <= '9' && value < 1 << 20)
		value = value * 10 + (*word++ - '0');
	return value;
}

/* A file of /proc, in `text`; 0: it is not there. */
static int load(const char *path)
{
	long file = call(OPENAT, HERE, (long)path, 0, 0, 0), got;
	size_t filled = 0;

	text[0] = 0;
	if (file < 0)
		return 0;
	while (filled < TABLE - 1 && (got = call(READ, file, (long)(text + filled), (long)(TABLE - 1 - filled), 0, 0)) > 0)
		filled += (size_t)got;
	text[filled] = 0;
	call(CLOSE, file, 0, 0, 0, 0);
	return 1;
}

/* The number behind "KEY:" of `text`. */
static long setting(const char *key, long otherwise)
{
	const char *line = text;
	long value;

	while (*line) {
		if (begins(line, key) && line[length(key)] == ':') {
			value = number(line + length(key) + 1);
			return value < 0 ? otherwise : value;
		}
		while (*line && *line++ != '\n')
			;
	}
	return otherwise;
}

/* The major number of a driver's character devices; -1: it is not loaded. */
static long major_of(const char *name)
{
	const char *line;

	load("/proc/devices");
	for (line = text; *line && !begins(line, "Block");) {
		const char *word = line;

		while (*word == ' ' || (*word >= '0' && *word <= '9'))
			word++;
		if (word > line && begins(word, name) && word[length(name)] == '\n')
			return number(line);
		while (*line && *line++ != '\n')
			;
	}
	return -1;
}

static int is_loaded(const char *module)
{
	char path[64] = "/sys/module/";
	struct status found;
	char *mark;

	append(path, module);
	for (mark = path; *mark; mark++)
		if (*mark == '-')
			*mark = '_';
	return call(STATX, HERE, (long)path, 0, 0x7ff, (long)&found) == 0;
}

/* Runs the kernel's modprobe, as the kernel would: with an environment of its own. */
static int load_module(const char *module)
{
	const char *environment[] = {"PATH=/sbin:/usr/sbin:/bin:/usr/bin", NULL};
	static char program[1024];
	const char *words[] = {program, module, NULL};
	int status = 1;
	long child;
	size_t at;

	if (is_loaded(module))
		return 1;
	if (!load("/proc/sys/kernel/modprobe"))
		return 0;
	for (at = 0; at < sizeof(program) - 1 && text[at] && text[at] != '\n'; at++)
		program[at] = text[at];
	child = call(CLONE, SIGCHLD, 0, 0, 0, 0);
	if (child == 0) {
		call(SETUID, 0, 0, 0, 0, 0);
		call(EXECVE, (long)program, (long)words, (long)environment, 0, 0);
		leave(1);
	}
	return child > 0 && call(WAIT4, child, (long)&status, 0, 0, 0) == child && status == 0;
}

/* udev links the nodes that the kernel makes alone. */
static void link_by_number(const char *path, long major, long minor)
{
	char link[64] = "/dev/char/", target[64] = "..";

	append_number(link, major);
	append(link, ":");
	append_number(link, minor);
	append(target, path + length("/dev"));
	call(MKDIRAT, HERE, (long)"/dev/char", 0755, 0, 0);
	call(SYMLINKAT, (long)target, HERE, (long)link, 0, 0);
}

static int node(const char *path, long major, long minor)
{
	long device = (minor & 0xff) | (major << 8) | ((minor & ~0xffL) << 12), mode, owner, group, allowed;
	struct status found;

	load("/proc/driver/nvidia/params");
	mode = setting("DeviceFileMode", 0666) & 0777;
	owner = setting("DeviceFileUID", 0);
	group = setting("DeviceFileGID", 0);
	allowed = setting("ModifyDeviceFiles", 1);
	if (allowed == 1) {
		if (call(STATX, HERE, (long)path, 0x100, 0x7ff, (long)&found) == 0 &&
		    ((found.mode & 0170000) != CHARACTER || found.rdev_major != major || found.rdev_minor != minor) &&
		    call(UNLINKAT, HERE, (long)path, 0, 0, 0) != 0)
			return 0;
		if (call(MKNODAT, HERE, (long)path, CHARACTER | mode, device, 0) != 0 &&
		    call(STATX, HERE, (long)path, 0x100, 0x7ff, (long)&found) != 0)
			return 0;
		if (call(FCHMODAT, HERE, (long)path, mode, 0, 0) != 0 || call(FCHOWNAT, HERE, (long)path, owner, group, 0) != 0)
			return 0;
	}
	link_by_number(path, major, minor);
	return 1;
}

static int nodes_of_uvm(long minor)
{
	long major = major_of("nvidia-uvm");

	return major > 0 && node("/dev/nvidia-uvm", major, minor) && node("/dev/nvidia-uvm-tools", major, minor + 1);
}

static int node_of_gpu(long minor)
{
	char path[64] = "/dev/nvidia";

	if (minor == CONTROL)
		append(path, "ctl");
	else
		append_number(path, minor);
	return node(path, FRONTEND, minor);
}

static __attribute__((noreturn)) void usage(const char *program)
{
	print(2, "\nERROR: Invalid commandline, please run `");
	print(2, program);
	print(2, " --help` for usage information.\n\n");
	leave(1);
}

__attribute__((noreturn, used)) void run(long *stack)
{
	char **words = (char **)(stack + 1);
	long minors[MINORS];
	int count = 0, unified = 0, at, done;

	for (at = 1; words[at]; at++) {
		if (same(words[at], "-v") || same(words[at], "--version")) {
			print(1, "\nnvidia-modprobe:  version " VERSION "  (gpu-ami@replica)\n\n");
			leave(0);
		} else if (same(words[at], "-h") || same(words[at], "--help")) {
			print(1, "\nnvidia-modprobe [options]\n\n  -v, --version\n  -h, --help\n  -c, --create-nvidia-device-file=MINOR\n"
				 "  -u, --unified-memory\n\n");
			leave(0);
		} else if (same(words[at], "-u") || same(words[at], "--unified-memory")) {
			unified = 1;
		} else if (same(words[at], "-c") && words[at + 1] && number(words[at + 1]) >= 0 && count < MINORS) {
			minors[count++] = number(words[++at]);
		} else if (begins(words[at], "--create-nvidia-device-file=") && count < MINORS &&
			   number(words[at] + length("--create-nvidia-device-file=")) >= 0) {
			minors[count++] = number(words[at] + length("--create-nvidia-device-file="));
		} else {
			usage(words[0]);
		}
	}
	done = load_module(unified ? "nvidia-uvm" : "nvidia");
	for (at = 0; done && at < count; at++)
		done = unified ? nodes_of_uvm(minors[at]) : node_of_gpu(minors[at]);
	leave(!done);
}
