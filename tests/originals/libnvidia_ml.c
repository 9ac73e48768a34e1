/* What nvidia-ctk asks of libnvidia-ml, on a machine without NVIDIA's driver: $NVML_GPUS boards of one model.
 *
 * Names, versions of symbols and structures: nvml.h (wheel nvidia-nvml-dev). A function that is not here is one that the
 * caller looks up before it calls. Boards are not in MIG mode. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
struct board { unsigned index; };
struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char name[32];
};
static struct board boards[16];

static unsigned count(void)
{
    const char *text = getenv("NVML_GPUS");
    int number = text ? atoi(text) : 0;
    return number < 0 || number > 16 ? 0 : (unsigned)number;
}

int nvmlInit_v2(void)
{
    for (unsigned at = 0; at < 16; at++)
        boards[at].index = at;
    return SUCCESS;
}
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlInit(void) { return nvmlInit_v2(); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int status)
{
    return status == SUCCESS ? "Success" : status == INVALID_ARGUMENT ? "Invalid Argument"
           : status == NOT_FOUND ? "Not Found" : "Not Supported";
}

static int text(char *into, unsigned size, const char *value) { snprintf(into, size, "%s", value); return SUCCESS; }
int nvmlSystemGetDriverVersion(char *into, unsigned size) { return text(into, size, DRIVER); }
int nvmlSystemGetNVMLVersion(char *into, unsigned size) { return text(into, size, "13." DRIVER); }
int nvmlSystemGetCudaDriverVersion(int *version) { *version = 13000; return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *number) { *number = count(); return SUCCESS; }
int nvmlDeviceGetCount(unsigned *number) { return nvmlDeviceGetCount_v2(number); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct board **board)
{
    if (index >= count())
        return INVALID_ARGUMENT;
    *board = &boards[index];
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex(unsigned index, struct board **board) { return nvmlDeviceGetHandleByIndex_v2(index, board); }
int nvmlDeviceGetName(struct board *board, char *into, unsigned size) { (void)board; return text(into, size, "NVIDIA A10G"); }
int nvmlDeviceGetIndex(struct board *board, unsigned *index) { *index = board->index; return SUCCESS; }
int nvmlDeviceGetMinorNumber(struct board *board, unsigned *minor) { *minor = board->index; return SUCCESS; }
int nvmlDeviceGetUUID(struct board *board, char *into, unsigned size)
{
    snprintf(into, size, "GPU-0000000%u", board->index);
    return SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, struct board **board)
{
    for (unsigned at = 0; at < count(); at++) {
        char own[64];
        nvmlDeviceGetUUID(&boards[at], own, sizeof own);
        if (!strcmp(own, uuid)) {
            *board = &boards[at];
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}
int nvmlDeviceGetPciInfo_v3(struct board *board, struct pci *pci)
{
    memset(pci, 0, sizeof *pci);
    pci->device = 27 + board->index;
    pci->id = 0x223710de;
    snprintf(pci->legacy, sizeof pci->legacy, "0000:00:%02X.0", pci->device);
    snprintf(pci->name, sizeof pci->name, "00000000:00:%02X.0", pci->device);
    return SUCCESS;
}
int nvmlDeviceGetMigMode(struct board *board, unsigned *now, unsigned *next)
{
    (void)board;
    *now = *next = 0;
    return NOT_SUPPORTED;
}
int nvmlDeviceGetMaxMigDeviceCount(struct board *board, unsigned *number) { (void)board; *number = 0; return SUCCESS; }
int nvmlDeviceIsMigDeviceHandle(struct board *board, unsigned *is) { (void)board; *is = 0; return SUCCESS; }
int nvmlDeviceGetBrand(struct board *board, unsigned *brand) { (void)board; *brand = 14; return SUCCESS; }
int nvmlDeviceGetArchitecture(struct board *board, unsigned *architecture) { (void)board; *architecture = 7; return SUCCESS; }
int nvmlDeviceGetCudaComputeCapability(struct board *board, int *major, int *minor)
{
    (void)board;
    *major = 8;
    *minor = 6;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(struct board *board, unsigned long long *info)
{
    (void)board;
    info[0] = 23028ull << 20;
    info[1] = info[0];
    info[2] = 0;
    return SUCCESS;
}
