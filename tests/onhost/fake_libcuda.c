/* libcuda as the program of onhost/provoke_xid.py calls it: no GPU, "device memory" is the process's own.
 * FAKE_FAILS="cuInit=802" makes a call fail; FAKE_TAKES_PAGE_ZERO accepts the store that ought to be refused;
 * FAKE_FORGETS loses what was stored. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t pending;
static uint32_t value;
static int context_made;

static int failure(const char *call)
{
    const char *asked = getenv("FAKE_FAILS");
    size_t length = strlen(call);
    if (asked && !strncmp(asked, call, length) && asked[length] == '=')
        return atoi(asked + length + 1);
    return 0;
}

int cuGetErrorName(int error, const char **name)
{
    *name = error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : error == 802 ? "CUDA_ERROR_SYSTEM_NOT_READY" : 0;
    return *name ? 0 : 1;
}

int cuInit(unsigned flags) { return flags ? 1 : failure("cuInit"); }

int cuDeviceGetByPCIBusId(int *device, const char *pci)
{
    if (strcmp(pci, "0000:00:1e.0"))
        return 101;
    *device = 7;
    return failure("cuDeviceGetByPCIBusId");
}

int cuCtxCreate_v2(void **context, unsigned flags, int device)
{
    if (flags || device != 7)
        return 1;
    context_made = 1;
    *context = &context_made;
    return failure("cuCtxCreate_v2");
}

int cuModuleLoadDataEx(void **module, const char *ptx, unsigned count, int *options, void **values)
{
    int error = failure("cuModuleLoadDataEx");
    if (!context_made || !strstr(ptx, ".visible .entry store(") || count != 2 || options[0] != 5 || options[1] != 6)
        return 1;
    if (error)
        snprintf(values[0], (size_t)values[1], "ptxas application ptx input, line 6; error");
    *module = &pending;
    return error;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    if (module != &pending || strcmp(name, "store"))
        return 500;
    *function = &value;
    return failure("cuModuleGetFunction");
}

int cuMemAlloc_v2(uint64_t *memory, size_t bytes)
{
    *memory = (uint64_t)(uintptr_t)calloc(1, bytes);
    return failure("cuMemAlloc_v2");
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra)
{
    if (function != &value || gx * gy * gz * bx * by * bz != 1 || shared || stream || extra)
        return 1;
    pending = *(uint64_t *)parameters[0];
    value = *(uint32_t *)parameters[1];
    return failure("cuLaunchKernel");
}

int cuCtxSynchronize(void)
{
    int error = failure("cuCtxSynchronize");
    if (error)
        return error;
    if (pending < 4096)
        return getenv("FAKE_TAKES_PAGE_ZERO") ? 0 : 700;
    if (!getenv("FAKE_FORGETS"))
        *(uint32_t *)(uintptr_t)pending = value;
    return 0;
}

int cuMemcpyDtoH_v2(void *host, uint64_t memory, size_t bytes)
{
    memcpy(host, (void *)(uintptr_t)memory, bytes);
    return failure("cuMemcpyDtoH_v2");
}
