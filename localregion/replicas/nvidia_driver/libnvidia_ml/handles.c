/* Handles by index, UUID, serial number and bus id. */

API int nvmlDeviceGetCount_v2(unsigned int *count)
{
	if (!references)
		return UNINITIALIZED;
	if (!count)
		return INVALID_ARGUMENT;
	*count = board_count;
	return SUCCESS;
}

API int nvmlDeviceGetCount(unsigned int *count)
{
	return nvmlDeviceGetCount_v2(count);
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct unit **unit)
{
	if (!references)
		return UNINITIALIZED;
	if (!unit || index >= (unsigned int)board_count)
		return INVALID_ARGUMENT;
	*unit = units[index];
	return SUCCESS;
}

API int nvmlDeviceGetHandleByIndex(unsigned int index, struct unit **unit)
{
	return nvmlDeviceGetHandleByIndex_v2(index, unit);
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, struct unit **unit)
{
	char profiles[SLICES][32], own[64];
	int row, part;

	if (!references)
		return UNINITIALIZED;
	if (!uuid || !unit)
		return INVALID_ARGUMENT;
	for (row = 0; row < board_count; row++) {
		if (!strcmp(uuid, boards[row].uuid)) {
			*unit = units[row];
			return SUCCESS;
		}
		for (part = list_instances(&boards[row], profiles) - 1; part >= 0; part--) {
			mig_uuid(&boards[row], part, own, sizeof own);
			if (!strcmp(uuid, own)) {
				*unit = &units[row][part + 1];
				return SUCCESS;
			}
		}
	}
	return NOT_FOUND;
}

API int nvmlDeviceGetHandleBySerial(const char *serial, struct unit **unit)
{
	char own[64];
	int row;

	if (!references)
		return UNINITIALIZED;
	if (!serial || !unit)
		return INVALID_ARGUMENT;
	for (row = 0; row < board_count; row++)
		if (value_of(boards[row].text, "serial", own, sizeof own) && !strcmp(serial, own)) {
			*unit = units[row];
			return SUCCESS;
		}
	return NOT_FOUND;
}

/* dddd:bb:dd.f with a domain of four or eight digits, or none; letters of any case. */
API int nvmlDeviceGetHandleByPciBusId_v2(const char *address, struct unit **unit)
{
	unsigned long numbers[3] = {0, 0, 0};
	const char *second, *third;
	char *end;
	int row;

	if (!references)
		return UNINITIALIZED;
	second = address ? strchr(address, ':') : NULL;
	if (!second || !unit)
		return INVALID_ARGUMENT;
	third = strchr(second + 1, ':');
	numbers[0] = third ? strtoul(address, NULL, 16) : 0;
	numbers[1] = strtoul(third ? second + 1 : address, NULL, 16);
	numbers[2] = strtoul(third ? third + 1 : second + 1, &end, 16);
	if (*end && *end != '.')
		return INVALID_ARGUMENT;
	for (row = 0; row < board_count; row++)
		if (boards[row].domain == numbers[0] && boards[row].bus == numbers[1] && boards[row].slot == numbers[2]) {
			*unit = units[row];
			return SUCCESS;
		}
	return NOT_FOUND;
}

API int nvmlDeviceGetHandleByPciBusId(const char *address, struct unit **unit)
{
	return nvmlDeviceGetHandleByPciBusId_v2(address, unit);
}
