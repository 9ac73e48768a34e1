/* Clocks, performance state, and the modes of a board. */

enum { WITHOUT_APPLICATION_CLOCKS = 590, WITHOUT_DISPLAY_MODE = 580, WITHOUT_POWER_STATE = 595 }; /* smi/query.py, report.py */

static int clock_of(const struct unit *unit, unsigned int type, unsigned int *mhz, int highest)
{
	struct readings readings;
	int error = check(unit, mhz);
	long value;

	if (error || type >= CLOCKS)
		return error ? error : INVALID_ARGUMENT;
	read_sensors(unit->board, &readings);
	value = highest ? number_of(unit->board, clock_keys[type]) : readings.clocks[type];
	if (value < 0)
		return NOT_SUPPORTED;
	*mhz = value;
	return SUCCESS;
}

API int nvmlDeviceGetClockInfo(const struct unit *unit, unsigned int type, unsigned int *mhz)
{
	return clock_of(unit, type, mhz, 0);
}

API int nvmlDeviceGetMaxClockInfo(const struct unit *unit, unsigned int type, unsigned int *mhz)
{
	return clock_of(unit, type, mhz, 1);
}

/* Of graphics and memory alone. */
API int nvmlDeviceGetDefaultApplicationsClock(const struct unit *unit, unsigned int type, unsigned int *mhz)
{
	int error = check(unit, mhz);

	if (error || type >= CLOCKS)
		return error ? error : INVALID_ARGUMENT;
	if (branch_of(VERSION) >= WITHOUT_APPLICATION_CLOCKS)
		return DEPRECATED;
	return type == CLOCK_VIDEO ? NOT_SUPPORTED : clock_of(unit, type, mhz, 1);
}

API int nvmlDeviceGetApplicationsClock(const struct unit *unit, unsigned int type, unsigned int *mhz)
{
	int error = nvmlDeviceGetDefaultApplicationsClock(unit, type, mhz);
	char text[2048];
	const char *value;

	if (error)
		return error;
	read_settings(unit->board, text, sizeof text);
	value = setting(text, "clocks"); /* [memory, graphics] */
	if (value && type != CLOCK_MEMORY)
		value = strchr(value, ' ');
	if (value)
		*mhz = strtoul(value + 1, NULL, 10);
	return SUCCESS;
}

API int nvmlDeviceGetMaxCustomerBoostClock(const struct unit *unit, unsigned int type, unsigned int *mhz)
{
	return type == CLOCK_GRAPHICS || type >= CLOCKS ? clock_of(unit, type, mhz, 1) : NOT_SUPPORTED;
}

/* id: current, application's target, its default, highest. */
API int nvmlDeviceGetClock(const struct unit *unit, unsigned int type, unsigned int id, unsigned int *mhz)
{
	switch (id) {
	case 0:
		return clock_of(unit, type, mhz, 0);
	case 1:
		return nvmlDeviceGetApplicationsClock(unit, type, mhz);
	case 2:
		return nvmlDeviceGetDefaultApplicationsClock(unit, type, mhz);
	case 3:
		return nvmlDeviceGetMaxCustomerBoostClock(unit, type, mhz);
	}
	return INVALID_ARGUMENT;
}

API int nvmlDeviceGetPerformanceState(const struct unit *unit, unsigned int *state)
{
	return constant(unit, state, 0);
}

API int nvmlDeviceGetPowerState(const struct unit *unit, unsigned int *state)
{
	int error = check(unit, state);

	return !error && branch_of(VERSION) >= WITHOUT_POWER_STATE ? DEPRECATED : constant(unit, state, 0);
}

static int reasons(const struct unit *unit, unsigned long long *answer, unsigned long long value)
{
	int error = check(unit, answer);

	if (!error)
		*answer = value;
	return error;
}

API int nvmlDeviceGetCurrentClocksEventReasons(const struct unit *unit, unsigned long long *active)
{
	return reasons(unit, active, 0);
}

API int nvmlDeviceGetCurrentClocksThrottleReasons(const struct unit *unit, unsigned long long *active)
{
	return reasons(unit, active, 0);
}

API int nvmlDeviceGetSupportedClocksEventReasons(const struct unit *unit, unsigned long long *supported)
{
	return reasons(unit, supported, 0x1ff);
}

API int nvmlDeviceGetSupportedClocksThrottleReasons(const struct unit *unit, unsigned long long *supported)
{
	return reasons(unit, supported, 0x1ff);
}

API int nvmlDeviceGetComputeMode(const struct unit *unit, unsigned int *mode)
{
	return constant(unit, mode, 0);
}

/* As it was set; else as the persistence daemon runs. */
API int nvmlDeviceGetPersistenceMode(const struct unit *unit, unsigned int *mode)
{
	int error = check(unit, mode);
	char text[2048], full[512];
	int file;

	if (error)
		return error;
	read_settings(unit->board, text, sizeof text);
	file = setting(text, "persistence") ? -1 : open(rooted("/run/nvidia-persistenced/mode", full, sizeof full), READ_ONLY);
	*mode = is_set(text, "persistence") || file >= 0;
	if (file >= 0)
		close(file);
	return SUCCESS;
}

API int nvmlDeviceGetDisplayMode(const struct unit *unit, unsigned int *mode)
{
	int error = check(unit, mode);

	return !error && branch_of(VERSION) >= WITHOUT_DISPLAY_MODE ? DEPRECATED : constant(unit, mode, 1);
}

API int nvmlDeviceGetDisplayActive(const struct unit *unit, unsigned int *active)
{
	return constant(unit, active, 0);
}

API int nvmlDeviceGetAccountingMode(const struct unit *unit, unsigned int *mode)
{
	return constant(unit, mode, 0);
}

API int nvmlDeviceGetAccountingBufferSize(const struct unit *unit, unsigned int *size)
{
	return constant(unit, size, 4000);
}
