/* How GPUs are connected: NVLink, PCIe, the fabric, CPUs. */

/* SUCCESS where the board has the link. In MIG mode there are none (H100 and H200 with 590.48.01). */
static int check_link(const struct unit *unit, unsigned int link, const void *answer)
{
	int error = check(unit, answer);

	if (error)
		return error;
	if (link >= MAX_LINKS)
		return INVALID_ARGUMENT;
	return link >= unit->board->nvlinks || is_divided(unit->board) ? NOT_SUPPORTED : SUCCESS;
}

API int nvmlDeviceGetNvLinkState(const struct unit *unit, unsigned int link, unsigned int *active)
{
	int error = check_link(unit, link, active);

	if (!error)
		*active = 1;
	return error;
}

API int nvmlDeviceGetNvLinkCapability(const struct unit *unit, unsigned int link, unsigned int capability, unsigned int *has)
{
	int error = check_link(unit, link, has);

	(void)capability;
	if (!error)
		*has = 1;
	return error;
}

API int nvmlDeviceGetNvLinkErrorCounter(const struct unit *unit, unsigned int link, unsigned int counter,
                                        unsigned long long *count)
{
	int error = check_link(unit, link, count);

	if (!error && counter > 4)
		error = INVALID_ARGUMENT;
	if (!error)
		*count = 0;
	return error;
}

static void read_device_file(const struct board *board, const char *name, char *text, size_t bytes)
{
	char path[160];

	snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/%s", board->address, name);
	if (read_file(path, text, bytes) < 0)
		text[0] = '\0';
}

API int nvmlDeviceGetTopologyCommonAncestor(const struct unit *one, const struct unit *other, unsigned int *path)
{
	char nodes[2][32];
	int error = check(one, path);

	if (!error)
		error = check(other, path);
	if (error)
		return error;
	read_device_file(one->board, "numa_node", nodes[0], sizeof nodes[0]);
	read_device_file(other->board, "numa_node", nodes[1], sizeof nodes[1]);
	*path = one == other ? 0 : !strcmp(nodes[0], nodes[1]) ? PATH_HOST_BRIDGE : PATH_SYSTEM;
	return SUCCESS;
}

/* A bit for each CPU of the device's local_cpulist, "0-7,16-23". */
API int nvmlDeviceGetCpuAffinity(const struct unit *unit, unsigned int words, unsigned long *set)
{
	unsigned int bits = words * 8 * sizeof *set;
	unsigned long first, last;
	int error = check(unit, set);
	char text[512], *at = text;

	if (error)
		return error;
	read_device_file(unit->board, "local_cpulist", text, sizeof text);
	if (*at < '0' || *at > '9')
		return NOT_SUPPORTED;
	memset(set, 0, words * sizeof *set);
	while (*at >= '0' && *at <= '9') {
		first = last = strtoul(at, &at, 10);
		if (*at == '-')
			last = strtoul(at + 1, &at, 10);
		for (; first <= last && first < bits; first++)
			set[first / (8 * sizeof *set)] |= 1UL << first % (8 * sizeof *set);
		at += *at == ',';
	}
	return SUCCESS;
}

API int nvmlDeviceGetCpuAffinityWithinScope(const struct unit *unit, unsigned int words, unsigned long *set, unsigned int scope)
{
	(void)scope;
	return nvmlDeviceGetCpuAffinity(unit, words, set);
}

static int is_of_rack(const struct board *board)
{
	return is_model(board, "GB200") || is_model(board, "GB300");
}

/* What the fabric manager wrote when it registered the GPUs: the number of the loaded module's folder (smi/driver.py). */
static int is_registered(void)
{
	void *folder = open_folder("/sys/module");
	struct entry *entry;
	uint64_t loaded = 0;
	char text[32];

	while (folder && (entry = readdir(folder)))
		if (!strcmp(entry->name, "nvidia"))
			loaded = entry->inode;
	if (folder)
		closedir(folder);
	return read_file("/run/nvidia-fabric/registered", text, sizeof text) > 0 && strtoul(text, NULL, 10) == loaded;
}

static int fabric_state(const struct board *board)
{
	if (is_of_rack(board))
		return FABRIC_COMPLETED;
	if (!is_behind_switches(board))
		return FABRIC_NOT_SUPPORTED;
	return is_registered() ? FABRIC_COMPLETED : FABRIC_IN_PROGRESS;
}

API int nvmlDeviceGetGpuFabricInfo(const struct unit *unit, struct nvml_fabric *fabric)
{
	static const unsigned char rack[16] = {0xa5, 0, 0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 1}; /* smi/report.py */
	int error = check(unit, fabric);

	if (error)
		return error;
	if (!is_architecture(unit->board, "Hopper Blackwell"))
		return NOT_SUPPORTED;
	memset(fabric, 0, sizeof *fabric);
	fabric->state = fabric_state(unit->board);
	if (is_of_rack(unit->board)) {
		memcpy(fabric->cluster, rack, sizeof rack);
		fabric->clique = 32766;
	}
	return SUCCESS;
}

/* Health: as smi/report.py shows it of Blackwell, from R550 on. Its values: 1 true, 2 false; 2 bits each. */
API int nvmlDeviceGetGpuFabricInfoV(const struct unit *unit, struct nvml_fabric_v *fabric)
{
	struct nvml_fabric plain;
	size_t bytes = offsetof(struct nvml_fabric_v, health_summary); /* of v2 */
	int error = check(unit, fabric), is_third;

	if (error)
		return error;
	is_third = fabric->version == STRUCT_VERSION(sizeof *fabric, 3) && branch_of(VERSION) >= 580;
	if (!is_third && fabric->version != STRUCT_VERSION(bytes, 2))
		return ARGUMENT_VERSION_MISMATCH;
	error = nvmlDeviceGetGpuFabricInfo(unit, &plain);
	if (error)
		return error;
	memcpy(fabric->cluster, plain.cluster, sizeof plain.cluster);
	fabric->status = plain.status;
	fabric->clique = plain.clique;
	fabric->state = plain.state;
	fabric->health_mask = 0;
	if (plain.state == FABRIC_COMPLETED && is_architecture(unit->board, "Blackwell")) {
		if (is_of_rack(unit->board))
			fabric->health_mask = 2 | 2 << 2 | 2 << 4;
		fabric->health_mask |= 2 << 6;
	}
	if (is_third)
		fabric->health_summary = fabric->health_mask != 0;
	return SUCCESS;
}
