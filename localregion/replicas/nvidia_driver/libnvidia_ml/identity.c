/* What a board is: names, numbers, its place on the bus. */

API int nvmlDeviceGetName(const struct unit *unit, char *name, unsigned int bytes)
{
	char profiles[SLICES][32], text[160];
	int error = check_any(unit);

	if (error)
		return error;
	if (!is_mig(unit))
		return copy_text(unit->board->name, name, bytes);
	if (unit->part >= list_instances(unit->board, profiles))
		return INVALID_ARGUMENT; /* the MIG device is gone */
	snprintf(text, sizeof text, "%s MIG %s", unit->board->name, profiles[unit->part]);
	return copy_text(text, name, bytes);
}

API int nvmlDeviceGetUUID(const struct unit *unit, char *uuid, unsigned int bytes)
{
	int error = check_any(unit);
	char text[64];

	if (error)
		return error;
	if (!is_mig(unit))
		return copy_text(unit->board->uuid, uuid, bytes);
	mig_uuid(unit->board, unit->part, text, sizeof text);
	return copy_text(text, uuid, bytes);
}

API int nvmlDeviceGetIndex(const struct unit *unit, unsigned int *index)
{
	int error = check_any(unit);

	if (!error && !index)
		error = INVALID_ARGUMENT;
	if (!error)
		*index = is_mig(unit) ? unit->part : index_of(unit);
	return error;
}

API int nvmlDeviceGetMinorNumber(const struct unit *unit, unsigned int *minor)
{
	int error = check(unit, minor);

	if (!error)
		*minor = unit->board->minor;
	return error;
}

/* A line of the description that some boards lack. */
static int described(const struct unit *unit, const char *key, char *target, unsigned int bytes)
{
	int error = check(unit, target);
	char text[96];

	if (error)
		return error;
	return value_of(unit->board->text, key, text, sizeof text) ? copy_text(text, target, bytes) : NOT_SUPPORTED;
}

API int nvmlDeviceGetSerial(const struct unit *unit, char *serial, unsigned int bytes)
{
	return described(unit, "serial", serial, bytes);
}

API int nvmlDeviceGetVbiosVersion(const struct unit *unit, char *version, unsigned int bytes)
{
	return described(unit, "vbios", version, bytes);
}

/* The processor came with Turing. */
API int nvmlDeviceGetGspFirmwareVersion(const struct unit *unit, char *version)
{
	int error = check(unit, version);

	if (!error && is_architecture(unit->board, "Volta"))
		error = NOT_SUPPORTED;
	return error ? error : copy_text(VERSION, version, 64);
}

API int nvmlDeviceGetBoardPartNumber(const struct unit *unit, char *number, unsigned int bytes)
{
	int error = check(unit, number);

	(void)bytes;
	return error ? error : NOT_SUPPORTED;
}

API int nvmlDeviceGetInforomImageVersion(const struct unit *unit, char *version, unsigned int bytes)
{
	return nvmlDeviceGetBoardPartNumber(unit, version, bytes);
}

API int nvmlDeviceGetInforomVersion(const struct unit *unit, unsigned int object, char *version, unsigned int bytes)
{
	(void)object;
	return nvmlDeviceGetBoardPartNumber(unit, version, bytes);
}

/* An answer that is the same for each board. */
static int constant(const struct unit *unit, unsigned int *answer, unsigned int value)
{
	int error = check(unit, answer);

	if (!error)
		*answer = value;
	return error;
}

API int nvmlDeviceGetBrand(const struct unit *unit, unsigned int *brand)
{
	return constant(unit, brand, BRAND_NVIDIA);
}

API int nvmlDeviceGetMultiGpuBoard(const struct unit *unit, unsigned int *several)
{
	return constant(unit, several, 0);
}

API int nvmlDeviceGetBusType(const struct unit *unit, unsigned int *type)
{
	return constant(unit, type, BUS_PCIE);
}

API int nvmlDeviceGetVirtualizationMode(const struct unit *unit, unsigned int *mode)
{
	return constant(unit, mode, PASSTHROUGH); /* as instances of EC2 show it */
}

API int nvmlDeviceGetBoardId(const struct unit *unit, unsigned int *id)
{
	int error = check(unit, id);

	if (!error)
		*id = unit->board->bus << 8;
	return error;
}

API int nvmlDeviceGetArchitecture(const struct unit *unit, unsigned int *architecture)
{
	static const char *const names[] = {"Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada Lovelace", "Hopper",
	                                    "Blackwell"};
	unsigned int row;
	int error = check_any(unit);

	if (error || !architecture)
		return error ? error : INVALID_ARGUMENT;
	*architecture = 0xffffffff; /* NVML_DEVICE_ARCH_UNKNOWN */
	for (row = 0; row < sizeof names / sizeof *names; row++)
		if (!strcmp(names[row], unit->board->architecture))
			*architecture = row + 2;
	return SUCCESS;
}

API int nvmlDeviceGetCudaComputeCapability(const struct unit *unit, int *major, int *minor)
{
	int error = check_any(unit);

	if (error || !major || !minor)
		return error ? error : INVALID_ARGUMENT;
	*major = unit->board->major_capability;
	*minor = unit->board->minor_capability;
	return SUCCESS;
}

API int nvmlDeviceGetAddressingMode(const struct unit *unit, struct nvml_addressing *mode)
{
	int error = check(unit, mode);

	if (!error && mode->version != STRUCT_VERSION(sizeof *mode, 1))
		error = ARGUMENT_VERSION_MISMATCH;
	if (!error && is_architecture(unit->board, "Volta"))
		error = NOT_SUPPORTED;
	if (!error)
		mode->value = ADDRESSING_HMM;
	return error;
}

static unsigned int device_id(const struct board *board)
{
	char text[32];

	return (value_of(board->text, "device_id", text, sizeof text) ? strtoul(text, NULL, 16) << 16 : 0) | 0x10de;
}

API int nvmlDeviceGetPciInfo_v3(const struct unit *unit, struct nvml_pci *pci)
{
	int error = check_any(unit);
	const struct board *board;

	if (error || !pci)
		return error ? error : INVALID_ARGUMENT;
	board = unit->board;
	memset(pci, 0, sizeof *pci);
	pci->domain = board->domain;
	pci->bus = board->bus;
	pci->device = board->slot;
	pci->device_id = device_id(board);
	pci->subsystem_id = 0x10de;
	snprintf(pci->legacy_bus_id, sizeof pci->legacy_bus_id, "%04X:%02X:%02X.0", board->domain & 0xffff, board->bus & 0xff,
	         board->slot & 0xff);
	snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", board->domain, board->bus, board->slot);
	return SUCCESS;
}

/* The first two have the short address, and four reserved numbers after the ids. */
API int nvmlDeviceGetPciInfo_v2(const struct unit *unit, struct nvml_pci *pci)
{
	struct nvml_pci whole;
	int error = nvmlDeviceGetPciInfo_v3(unit, pci ? &whole : NULL);

	if (!error) {
		memset(whole.bus_id, 0, 4 * sizeof(unsigned int));
		memcpy(pci, &whole, offsetof(struct nvml_pci, bus_id) + 4 * sizeof(unsigned int));
	}
	return error;
}

API int nvmlDeviceGetPciInfo(const struct unit *unit, struct nvml_pci *pci)
{
	return nvmlDeviceGetPciInfo_v2(unit, pci);
}

API int nvmlDeviceGetPciInfoExt(const struct unit *unit, struct nvml_pci_ext *pci)
{
	struct nvml_pci whole;
	int error = pci ? nvmlDeviceGetPciInfo_v3(unit, &whole) : INVALID_ARGUMENT;

	if (!error && pci->version != STRUCT_VERSION(sizeof *pci, 1))
		error = ARGUMENT_VERSION_MISMATCH;
	if (error)
		return error;
	memcpy(&pci->domain, &whole.domain, 5 * sizeof(unsigned int));
	pci->base_class = 3;
	pci->sub_class = 2;
	memcpy(pci->bus_id, whole.bus_id, sizeof pci->bus_id);
	return SUCCESS;
}

/* A number of the description; NOT_SUPPORTED where the board has none. */
static int numbered(const struct unit *unit, const char *key, unsigned int *answer)
{
	int error = check(unit, answer);
	long value;

	if (error)
		return error;
	value = number_of(unit->board, key);
	if (value < 0)
		return NOT_SUPPORTED;
	*answer = value;
	return SUCCESS;
}

API int nvmlDeviceGetCurrPcieLinkGeneration(const struct unit *unit, unsigned int *generation)
{
	return numbered(unit, "pcie_gen", generation);
}

API int nvmlDeviceGetMaxPcieLinkGeneration(const struct unit *unit, unsigned int *generation)
{
	return numbered(unit, "pcie_gen", generation);
}

API int nvmlDeviceGetGpuMaxPcieLinkGeneration(const struct unit *unit, unsigned int *generation)
{
	return numbered(unit, "pcie_gen", generation);
}

API int nvmlDeviceGetCurrPcieLinkWidth(const struct unit *unit, unsigned int *width)
{
	return numbered(unit, "pcie_width", width);
}

API int nvmlDeviceGetMaxPcieLinkWidth(const struct unit *unit, unsigned int *width)
{
	return numbered(unit, "pcie_width", width);
}

API int nvmlDeviceGetPcieReplayCounter(const struct unit *unit, unsigned int *count)
{
	return constant(unit, count, 0);
}

API int nvmlDeviceGetPcieThroughput(const struct unit *unit, unsigned int counter, unsigned int *value)
{
	return counter > 1 ? INVALID_ARGUMENT : constant(unit, value, 0);
}
