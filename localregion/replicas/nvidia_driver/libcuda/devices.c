/*
 * The GPUs that CUDA shows, and why none may be used. Like the original it opens /dev/nvidiactl, the GPUs' nodes and
 * /dev/nvidia-uvm; unlike it, it never starts nvidia-modprobe to create them.
 *
 * Of the replica alone: /proc/driver/nvidia/gpus/<address>/fault has the board's seeded faults, words with spaces:
 *   hidden         the driver cannot use the board: it is left out
 *   not-ready      cuInit returns CUDA_ERROR_SYSTEM_NOT_READY
 *   wrong-result   one bit of one result of each kernel is wrong
 *   bad-memory     one bit of memory does not take the value that cuMemsetD32 stores
 *   bad-peer       one bit of each copy from another GPU is wrong
 *   stuck          cuCtxSynchronize does not return
 */

struct device {
	unsigned int domain, bus, slot, minor;
	unsigned int major_capability, minor_capability;
	uint64_t total;
	char name[96];
	unsigned char uuid[16], own_uuid[16]; /* of the board; of the MIG device, or the board's again */
	char faults[128];
	int nvlink;
};

static struct device devices[DEVICES];
static int device_count = -1; /* before cuInit */

static int has_fault(const struct device *device, const char *word)
{
	const char *at = strstr(device->faults, word);
	size_t length = strlen(word);

	return at && (at == device->faults || at[-1] == ' ') && (!at[length] || at[length] == ' ' || at[length] == '\n');
}

/* The sixteen bytes of "GPU-xxxxxxxx-xxxx-…" or "MIG-…". */
static void read_uuid(const char *text, unsigned char *uuid)
{
	int count = 0;

	for (text += 4; *text && count < 32; text++)
		if (*text != '-') {
			uuid[count / 2] = count % 2 ? uuid[count / 2] | digit(*text) : digit(*text) << 4;
			count++;
		}
}

static void describe(const struct board *board, struct device *device)
{
	char path[128];

	memset(device, 0, sizeof *device);
	device->domain = board->domain;
	device->bus = board->bus;
	device->slot = board->slot;
	device->minor = board->minor;
	device->major_capability = board->major_capability;
	device->minor_capability = board->minor_capability;
	device->total = board->memory_mib << 20;
	device->nvlink = board->nvlinks > 0;
	memcpy(device->name, board->name, sizeof device->name);
	read_uuid(board->uuid, device->uuid);
	memcpy(device->own_uuid, device->uuid, sizeof device->uuid);
	snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%s/fault", board->address);
	if (read_file(path, device->faults, sizeof device->faults) < 0)
		device->faults[0] = '\0';
}

/* Whether CUDA_VISIBLE_DEVICES, where it is set, names the device: by index, or by the beginning of its UUID. */
static int is_visible(const struct device *device, int index, int mig)
{
	const char *names = getenv("CUDA_VISIBLE_DEVICES");
	unsigned char uuid[16];

	if (!names)
		return 1;
	for (; names && *names; names = strchr(names, ',') ? strchr(names, ',') + 1 : NULL) {
		if (!strncmp(names, mig ? "MIG-" : "GPU-", 4)) {
			read_uuid(names, uuid);
			if (!memcmp(uuid, device->own_uuid, sizeof uuid))
				return 1;
		} else if (!mig && *names >= '0' && *names <= '9' && strtoul(names, NULL, 10) == (unsigned long)index) {
			return 1;
		}
	}
	return 0;
}

static void add_board(const struct board *board, int index)
{
	char node[32], profiles[SLICES][32], uuid[64];
	struct device device;
	int count, part;

	describe(board, &device);
	snprintf(node, sizeof node, "/dev/nvidia%u", board->minor);
	if (has_fault(&device, "hidden") || open_error(node))
		return;
	count = list_instances(board, profiles);
	if (count < 0 && device_count < DEVICES && is_visible(&device, index, 0))
		devices[device_count++] = device;
	/* The original shows one MIG device to a process. */
	for (part = 0; part < count && !device_count; part++) {
		describe(board, &device);
		mig_uuid(board, part, uuid, sizeof uuid);
		read_uuid(uuid, device.own_uuid);
		device.total = strchr(profiles[part], '.') ? (uint64_t)strtoul(strchr(profiles[part], '.') + 1, NULL, 10) << 30 : 0;
		device.nvlink = 0;
		if (is_visible(&device, index, 1))
			devices[device_count++] = device;
	}
}

/* Whether this is a container, in which /run is not the machine's. The driver of the original knows the state of the fabric
 * there, too; this library does not, and the machine's own programs are refused. */
static int is_container(void)
{
	void *folder = getenv("GPU_AMI_ROOT") ? NULL : opendir("/run/systemd/system");

	if (folder)
		closedir(folder);
	return !folder && !getenv("GPU_AMI_ROOT");
}

static int manager_runs(void)
{
	char path[64], text[32];

	if (is_container())
		return 1;
	if (read_file("/run/nvidia-fabricmanager/nv-fabricmanager.pid", text, sizeof text) <= 0)
		return 0;
	snprintf(path, sizeof path, "/proc/%lu/stat", strtoul(text, NULL, 10));
	return getenv("GPU_AMI_ROOT") || read_file(path, text, sizeof text) > 0;
}

/* The loaded driver must be the library's own; a compatibility library may be newer. */
static int driver_fits(void)
{
	char loaded[32];

	if (!loaded_version(loaded, sizeof loaded))
		return NO_DEVICE;
	return !strcmp(loaded, VERSION) || (branch_of(loaded) && branch_of(loaded) < branch_of(VERSION))
	               ? SUCCESS
	               : SYSTEM_DRIVER_MISMATCH;
}

API int cuInit(unsigned int flags)
{
	static char addresses[DEVICES][32];
	static struct board board;
	struct device device;
	int count, index, error = flags ? INVALID_VALUE : driver_fits();

	if (error || device_count > 0)
		return error;
	if (open_error("/dev/nvidiactl"))
		return NO_DEVICE;
	if (open_error("/dev/nvidia-uvm"))
		return UNKNOWN;
	count = list_boards(addresses);
	for (index = 0; index < count; index++) {
		if (!read_board(addresses[index], &board))
			continue;
		describe(&board, &device);
		/* NVSwitches without a fabric manager: GPUs work for nvidia-smi, and CUDA is not ready. */
		if (has_fault(&device, "not-ready") || (is_behind_switches(&board) && !manager_runs()))
			return SYSTEM_NOT_READY;
	}
	device_count = 0;
	for (index = 0; index < count; index++)
		if (read_board(addresses[index], &board))
			add_board(&board, index);
	return device_count ? SUCCESS : NO_DEVICE;
}
