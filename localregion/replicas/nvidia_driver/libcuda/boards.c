/*
 * The GPUs that the replica's kernel module shows, and why none may be used. Like the original it opens /dev/nvidiactl, the
 * GPUs' nodes and /dev/nvidia-uvm; unlike it, it never starts nvidia-modprobe to create them.
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

/* NVLinks by model: smi/driver.py, NVLINK. */
static const char *const linked[] = {"A100-SXM", "H100 80GB HBM3", "H200", "B200", "B300", "V100-SXM"};

static long read_file(const char *path, char *text, size_t bytes)
{
	char full[512];
	const char *root = getenv("GPU_AMI_ROOT");
	long count, sum = 0;
	int file;

	snprintf(full, sizeof full, "%s%s", root ? root : "", path);
	file = open(full, READ_ONLY);
	if (file < 0)
		return -1;
	while (sum < (long)bytes - 1 && (count = read(file, text + sum, bytes - 1 - sum)) > 0)
		sum += count;
	close(file);
	text[sum] = '\0';
	return sum;
}

static int can_open(const char *path)
{
	char full[512];
	const char *root = getenv("GPU_AMI_ROOT");
	int file;

	snprintf(full, sizeof full, "%s%s", root ? root : "", path);
	file = open(full, READ_WRITE);
	if (file < 0)
		return 0;
	close(file);
	return 1;
}

static int has_fault(const struct device *device, const char *word)
{
	const char *at = strstr(device->faults, word);
	size_t length = strlen(word);

	return at && (at == device->faults || at[-1] == ' ') && (!at[length] || at[length] == ' ' || at[length] == '\n');
}

/* The value of `key` in lines "key: value". */
static int value_of(const char *text, const char *key, char *value, size_t bytes)
{
	size_t length = strlen(key), count = 0;
	const char *line;

	for (line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
		if (!strncmp(line, key, length) && line[length] == ':' && line[length + 1] == ' ') {
			for (line += length + 2; *line && *line != '\n' && count < bytes - 1; line++)
				value[count++] = *line;
			value[count] = '\0';
			return 1;
		}
	return 0;
}

static unsigned int digit(char text)
{
	return text <= '9' ? text - '0' : (text | 32) - 'a' + 10;
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

static int read_board(const char *address, struct device *device, char *uuid)
{
	char path[128], text[4096], value[96];
	unsigned int model;

	snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%s/board", address);
	if (read_file(path, text, sizeof text) <= 0 || !value_of(text, "name", device->name, sizeof device->name) ||
	    !value_of(text, "uuid", uuid, 64) || !value_of(text, "minor", value, sizeof value))
		return 0;
	device->minor = strtoul(value, NULL, 10);
	read_uuid(uuid, device->uuid);
	memcpy(device->own_uuid, device->uuid, sizeof device->uuid);
	device->domain = strtoul(address, NULL, 16);
	device->bus = strtoul(address + 5, NULL, 16);
	device->slot = strtoul(address + 8, NULL, 16);
	if (value_of(text, "memory_mib", value, sizeof value))
		device->total = (uint64_t)strtoul(value, NULL, 10) << 20;
	if (value_of(text, "compute_capability", value, sizeof value)) {
		device->major_capability = strtoul(value, NULL, 10);
		device->minor_capability = strchr(value, '.') ? strtoul(strchr(value, '.') + 1, NULL, 10) : 0;
	}
	for (model = 0; model < sizeof linked / sizeof *linked; model++)
		device->nvlink |= strstr(device->name, linked[model]) != NULL;
	snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%s/fault", address);
	if (read_file(path, device->faults, sizeof device->faults) < 0)
		device->faults[0] = '\0';
	return 1;
}

/* The MIG devices of a board: nvidia-smi's own state names their profiles, "instances": ["3g.20gb", …]. */
static int read_instances(const struct device *board, const char *uuid, struct device *target, int room)
{
	char path[128], text[2048];
	const char *at, *end;
	int count = 0;

	snprintf(path, sizeof path, "/run/nvidia-smi/%s", uuid);
	if (read_file(path, text, sizeof text) <= 0 || !strstr(text, "\"mig\": true"))
		return -1;
	at = strstr(text, "\"instances\": [");
	end = at ? strchr(at, ']') : NULL;
	for (at = at ? strchr(at, '[') : NULL; at && at < end && (at = strstr(at, "g.")) && at < end; at += 2) {
		if (count == room)
			break;
		target[count] = *board;
		target[count].total = (uint64_t)strtoul(at + 2, NULL, 10) << 30;
		target[count].own_uuid[0] = board->uuid[0] ^ 0x80; /* never the board's own */
		target[count].own_uuid[15] = (board->uuid[15] & 0xf0) | (count & 0xf);
		target[count].nvlink = 0;
		count++;
	}
	return count;
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

static void add_board(const char *address, int index)
{
	struct device board = {0}, parts[16];
	char uuid[64], node[32];
	int count, part;

	if (!read_board(address, &board, uuid))
		return;
	snprintf(node, sizeof node, "/dev/nvidia%u", board.minor);
	if (has_fault(&board, "hidden") || !can_open(node))
		return;
	count = read_instances(&board, uuid, parts, 16);
	if (count < 0 && device_count < DEVICES && is_visible(&board, index, 0))
		devices[device_count++] = board;
	/* The original shows one MIG device to a process. */
	for (part = 0; part < count && !device_count; part++)
		if (is_visible(&parts[part], index, 1))
			devices[device_count++] = parts[part];
}

/* Names of GPUs in the order of their addresses. */
static int list_boards(char addresses[DEVICES][32])
{
	char path[512], other[32];
	const char *root = getenv("GPU_AMI_ROOT");
	struct entry *entry;
	int count = 0, place;
	void *folder;

	snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus", root ? root : "");
	folder = opendir(path);
	while (folder && count < DEVICES && (entry = readdir(folder)))
		if (entry->name[0] != '.' && strlen(entry->name) < 32) {
			snprintf(addresses[count], 32, "%s", entry->name);
			for (place = count++; place && memcmp(addresses[place], addresses[place - 1], 32) < 0; place--) {
				memcpy(other, addresses[place], 32);
				memcpy(addresses[place], addresses[place - 1], 32);
				memcpy(addresses[place - 1], other, 32);
			}
		}
	if (folder)
		closedir(folder);
	return count;
}

/* Whether the driver shows NVSwitches. */
static int has_switches(void)
{
	char path[512];
	const char *root = getenv("GPU_AMI_ROOT");
	struct entry *entry;
	void *folder;
	int switches = 0;

	snprintf(path, sizeof path, "%s/proc/driver/nvidia-nvswitch/devices", root ? root : "");
	folder = opendir(path);
	while (folder && (entry = readdir(folder)))
		switches += entry->name[0] != '.';
	if (folder)
		closedir(folder);
	return switches > 0;
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

/* NVSwitches without a fabric manager: GPUs work for nvidia-smi, and CUDA is not ready. Those of the fourth generation, behind
 * which each B200 and B300 is, have InfiniBand ports, and the driver shows none. */
static int fabric_is_ready(const struct device *board)
{
	int behind = strstr(board->name, " B200") || strstr(board->name, " B300");

	return manager_runs() || !(behind || has_switches());
}

/* The loaded driver must be the library's own; a compatibility library may be newer. */
static int driver_fits(void)
{
	char text[512];
	const char *at;

	if (read_file("/proc/driver/nvidia/version", text, sizeof text) <= 0)
		return NO_DEVICE;
	at = strstr(text, " " VERSION " ");
	if (at)
		return SUCCESS;
	for (at = text; *at && !(at[0] == ' ' && at[1] >= '1' && at[1] <= '9' && at[4] == '.'); at++)
		;
	return *at && strtoul(at + 1, NULL, 10) < strtoul(VERSION, NULL, 10) ? SUCCESS : SYSTEM_DRIVER_MISMATCH;
}

API int cuInit(unsigned int flags)
{
	static char addresses[DEVICES][32];
	int count, index, error = flags ? INVALID_VALUE : driver_fits();
	struct device board;
	char uuid[64];

	if (error || device_count > 0)
		return error;
	if (!can_open("/dev/nvidiactl"))
		return NO_DEVICE;
	if (!can_open("/dev/nvidia-uvm"))
		return UNKNOWN;
	memset(addresses, 0, sizeof addresses);
	count = list_boards(addresses);
	for (index = 0; index < count; index++) {
		memset(&board, 0, sizeof board);
		if (read_board(addresses[index], &board, uuid) && (has_fault(&board, "not-ready") || !fabric_is_ready(&board)))
			return SYSTEM_NOT_READY;
	}
	device_count = 0;
	for (index = 0; index < count; index++)
		add_board(addresses[index], index);
	return device_count ? SUCCESS : NO_DEVICE;
}
