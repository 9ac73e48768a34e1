/* The driver API (cuda.h): devices, contexts, modules, memory, launches, peers. A context is its device's number plus one. */

#define CONTEXTS 64

static int pending[DEVICES]; /* error of a launch, told by the next call that waits */
static struct kernel kernels[CONTEXTS];
static int kernel_count;
static int current = -1;

/* A name that no original has: programs may tell whose result they got. */
API const char gpu_ami_replica[] = "gpu-ami replica of libcuda " VERSION;

static int check(int device)
{
	if (device_count < 0)
		return NOT_INITIALIZED;
	return device < 0 || device >= device_count ? INVALID_DEVICE : SUCCESS;
}

static int in_context(void)
{
	return device_count < 0 ? NOT_INITIALIZED : current < 0 ? INVALID_CONTEXT : SUCCESS;
}

API int cuDeviceGetCount(int *count)
{
	*count = device_count < 0 ? 0 : device_count;
	return device_count < 0 ? NOT_INITIALIZED : SUCCESS;
}

API int cuDeviceGet(int *device, int ordinal)
{
	*device = ordinal;
	return check(ordinal);
}

API int cuDeviceGetName(char *name, int bytes, int device)
{
	int error = check(device);

	if (!error)
		snprintf(name, bytes, "%s", devices[device].name);
	return error;
}

API int cuDeviceGetUuid(unsigned char *uuid, int device)
{
	int error = check(device);

	if (!error)
		memcpy(uuid, devices[device].uuid, 16);
	return error;
}

API int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
	int error = check(device);

	if (!error)
		memcpy(uuid, devices[device].own_uuid, 16);
	return error;
}

API int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
	int error = check(device);

	if (!error)
		*bytes = devices[device].total;
	return error;
}

API int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	int error = check(device);

	if (error)
		return error;
	switch (attribute) {
	case 33:
		*value = devices[device].bus;
		break;
	case 34:
		*value = devices[device].slot;
		break;
	case 50:
		*value = devices[device].domain;
		break;
	case 75:
		*value = devices[device].major_capability;
		break;
	case 76:
		*value = devices[device].minor_capability;
		break;
	default:
		return INVALID_VALUE;
	}
	return SUCCESS;
}

API int cuDeviceGetByPCIBusId(int *device, const char *address)
{
	char own[32];

	if (device_count < 0)
		return NOT_INITIALIZED;
	for (*device = 0; *device < device_count; ++*device) {
		struct device *row = &devices[*device];

		snprintf(own, sizeof own, "%04x:%02x:%02x.0", row->domain, row->bus, row->slot);
		if (!strcmp(own, address))
			return SUCCESS;
	}
	return INVALID_DEVICE;
}

API int cuCtxCreate_v2(void **context, unsigned int flags, int device)
{
	int error = check(device);

	if (!error) {
		current = device;
		*context = (void *)(uintptr_t)(device + 1);
	}
	return error ? error : flags ? INVALID_VALUE : SUCCESS;
}

API int cuCtxSetCurrent(void *context)
{
	current = (int)(uintptr_t)context - 1;
	return device_count < 0 ? NOT_INITIALIZED : SUCCESS;
}

API int cuCtxDestroy_v2(void *context)
{
	struct allocation *row;
	int device = (int)(uintptr_t)context - 1;

	if (check(device))
		return INVALID_CONTEXT;
	for (row = allocations; row < allocations + ALLOCATIONS; row++)
		if (row->bytes && row->device == device)
			release(row->address);
	if (current == device)
		current = -1;
	return SUCCESS;
}

API int cuCtxSynchronize(void)
{
	int error = in_context();

	if (error)
		return error;
	while (has_fault(&devices[current], "stuck"))
		pause();
	return pending[current];
}

API int cuModuleLoadDataEx(void **module, const char *text, unsigned int count, const int *options, void **values)
{
	unsigned int option;
	size_t room = 0;
	char *log = NULL;
	int error = in_context(), entries, entry;

	for (option = 0; option < count; option++) { /* CU_JIT_ERROR_LOG_BUFFER and its size */
		if (options[option] == 5)
			log = values[option];
		if (options[option] == 6)
			room = (size_t)values[option];
	}
	if (error)
		return error;
	if (kernel_count > CONTEXTS - ENTRIES)
		return OUT_OF_MEMORY;
	memset(&kernels[kernel_count], 0, ENTRIES * sizeof *kernels);
	error = read_ptx(text, &devices[current], &kernels[kernel_count], &entries, log, room);
	if (error)
		return error;
	*module = &kernels[kernel_count];
	for (entry = 0; entry < entries; entry++)
		kernels[kernel_count++].device = current;
	return SUCCESS;
}

API int cuModuleGetFunction(void **function, void *module, const char *name)
{
	struct kernel *kernel = module;
	int device = kernel->device;

	for (; kernel < kernels + kernel_count && kernel->device == device; kernel++)
		if (!strcmp(kernel->name, name)) {
			*function = kernel;
			return SUCCESS;
		}
	return NOT_FOUND;
}

API int cuLaunchKernel(void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
		       unsigned int block_y, unsigned int block_z, unsigned int shared, void *stream, void **parameters,
		       void **extra)
{
	struct launch launch = {.kernel = function, .block = block_x, .blocks = grid_x};
	int error = in_context(), number;

	if (error || pending[current])
		return error ? error : pending[current];
	if (!grid_x || !block_x || block_x > 1024)
		return INVALID_VALUE;
	if (grid_y * grid_z * block_y * block_z != 1 || shared || stream || extra)
		return NOT_SUPPORTED;
	if (launch.kernel->device != current)
		return INVALID_CONTEXT;
	for (number = 0; number < launch.kernel->parameter_count; number++)
		memcpy(&launch.parameters[number], parameters[number],
		       launch.kernel->parameters[number].type >= U64 ? 8 : 4);
	pending[current] = execute(&launch, has_fault(&devices[current], "wrong-result"));
	return SUCCESS;
}

API int cuMemGetInfo_v2(size_t *free, size_t *total)
{
	int error = in_context();

	if (!error) {
		*free = FREE_BYTES - used[current];
		*total = devices[current].total;
	}
	return error;
}

API int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
	int error = in_context();

	return error ? error : allocate(current, address, bytes);
}

API int cuMemFree_v2(uint64_t address)
{
	int error = in_context();

	return error ? error : release(address);
}

API int cuMemAllocHost_v2(void **memory, size_t bytes)
{
	int error = in_context();

	if (error)
		return error;
	*memory = mmap(NULL, bytes, READABLE_WRITABLE, PRIVATE_ANONYMOUS, -1, 0);
	return *memory == (void *)-1 ? OUT_OF_MEMORY : SUCCESS;
}

API int cuMemcpyHtoD_v2(uint64_t address, const void *source, size_t bytes)
{
	unsigned char *host = in_context() ? NULL : translate(current, address, bytes);

	if (host)
		memcpy(host, source, bytes);
	return host ? pending[current] : in_context() ? in_context() : INVALID_VALUE;
}

API int cuMemcpyDtoH_v2(void *target, uint64_t address, size_t bytes)
{
	unsigned char *host = in_context() ? NULL : translate(current, address, bytes);

	if (host)
		memcpy(target, host, bytes);
	return host ? pending[current] : in_context() ? in_context() : INVALID_VALUE;
}

API int cuMemsetD32_v2(uint64_t address, unsigned int word, size_t count)
{
	unsigned char *host = in_context() ? NULL : translate(current, address, count * 4);
	size_t number;

	if (!host)
		return in_context() ? in_context() : INVALID_VALUE;
	for (number = 0; number < count; number++)
		memcpy(host + number * 4, &word, 4);
	if (count && has_fault(&devices[current], "bad-memory"))
		host[count / 2 * 4] &= 0xfe;
	return pending[current];
}

API int cuDeviceCanAccessPeer(int *can, int device, int other)
{
	int error = check(device) ? check(device) : check(other);

	if (!error)
		*can = device != other && devices[device].nvlink && devices[other].nvlink;
	return error;
}

API int cuCtxEnablePeerAccess(void *context, unsigned int flags)
{
	int other = (int)(uintptr_t)context - 1, can = 0, error = in_context();

	if (error || flags)
		return error ? error : INVALID_VALUE;
	error = cuDeviceCanAccessPeer(&can, current, other);
	if (error || !can)
		return error ? INVALID_CONTEXT : PEER_ACCESS_UNSUPPORTED;
	if (peers[current][other])
		return PEER_ACCESS_ALREADY_ENABLED;
	peers[current][other] = 1;
	return SUCCESS;
}

/* Without peer access the original copies by way of the host. */
API int cuMemcpyPeer(uint64_t target, void *target_context, uint64_t source, void *source_context, size_t bytes)
{
	int to = (int)(uintptr_t)target_context - 1, from = (int)(uintptr_t)source_context - 1;
	unsigned char *written, *read_from;

	if (check(to) || check(from))
		return INVALID_CONTEXT;
	written = translate(to, target, bytes);
	read_from = translate(from, source, bytes);
	if (!written || !read_from)
		return INVALID_VALUE;
	memcpy(written, read_from, bytes);
	if (bytes && from != to && (has_fault(&devices[from], "bad-peer") || has_fault(&devices[to], "bad-peer")))
		written[bytes / 2] ^= 1;
	return pending[to] ? pending[to] : pending[from];
}
