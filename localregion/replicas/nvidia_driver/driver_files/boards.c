/* The GPUs that the replica's kernel module shows, and what a board's model has: smi/driver.py has the same tables. */

struct board {
	char address[32]; /* 0000:00:1e.0 */
	unsigned int domain, bus, slot, minor;
	char name[96], uuid[64], architecture[32];
	unsigned int major_capability, minor_capability;
	uint64_t memory_mib; /* 0 where the description has none */
	unsigned int nvlinks;
	char text[4096]; /* the whole description */
};

/* NVLinks by model: smi/driver.py, NVLINK. */
static const struct {
	const char *part;
	unsigned int count;
} linked[] = {
	{"A100-SXM", 12}, {"H100 80GB HBM3", 18}, {"H200", 18}, {"B200", 18}, {"B300", 18}, {"V100-SXM", 6},
};

static int read_board(const char *address, struct board *board)
{
	char path[128], value[96];
	unsigned int model;

	memset(board, 0, sizeof *board);
	snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%s/board", address);
	if (read_file(path, board->text, sizeof board->text) <= 0 ||
	    !value_of(board->text, "name", board->name, sizeof board->name) ||
	    !value_of(board->text, "uuid", board->uuid, sizeof board->uuid) ||
	    !value_of(board->text, "minor", value, sizeof value))
		return 0;
	board->minor = strtoul(value, NULL, 10);
	snprintf(board->address, sizeof board->address, "%s", address);
	board->domain = strtoul(address, NULL, 16);
	board->bus = strtoul(address + 5, NULL, 16);
	board->slot = strtoul(address + 8, NULL, 16);
	value_of(board->text, "architecture", board->architecture, sizeof board->architecture);
	if (value_of(board->text, "memory_mib", value, sizeof value))
		board->memory_mib = strtoul(value, NULL, 10);
	if (value_of(board->text, "compute_capability", value, sizeof value)) {
		board->major_capability = strtoul(value, NULL, 10);
		board->minor_capability = strchr(value, '.') ? strtoul(strchr(value, '.') + 1, NULL, 10) : 0;
	}
	for (model = 0; model < sizeof linked / sizeof *linked && !board->nvlinks; model++)
		if (strstr(board->name, linked[model].part))
			board->nvlinks = linked[model].count;
	return 1;
}

/* Names of GPUs in the order of their addresses. */
static int list_boards(char addresses[DEVICES][32])
{
	void *folder = open_folder("/proc/driver/nvidia/gpus");
	struct entry *entry;
	int count = 0, place;
	char other[32];

	memset(addresses, 0, DEVICES * sizeof *addresses);
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

static int is_model(const struct board *board, const char *part)
{
	return strstr(board->name, part) != NULL;
}

/* Whether the driver shows NVSwitches, or the board is behind some of the fourth generation: those have InfiniBand ports, and
 * the driver shows none. */
static int is_behind_switches(const struct board *board)
{
	void *folder = open_folder("/proc/driver/nvidia-nvswitch/devices");
	struct entry *entry;
	int switches = is_model(board, " B200") || is_model(board, " B300");

	while (folder && (entry = readdir(folder)))
		switches += entry->name[0] != '.';
	if (folder)
		closedir(folder);
	return switches > 0;
}
