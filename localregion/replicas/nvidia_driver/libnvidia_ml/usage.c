/* Memory, utilisation, temperature, power. */

#define MIB (1ULL << 20)

/* Of a MIG device: as smi/report.py. */
static int memory_of(const struct unit *unit, struct readings *readings)
{
	char profiles[SLICES][32];

	if (!unit->board->memory_mib)
		return NOT_SUPPORTED;
	read_sensors(unit->board, readings);
	if (!is_mig(unit))
		return SUCCESS;
	if (unit->part >= list_instances(unit->board, profiles))
		return INVALID_ARGUMENT;
	readings->total = readings->total * strtoul(profiles[unit->part], NULL, 10) / SLICES;
	readings->reserved = 0;
	readings->used = 12;
	readings->free = readings->total - readings->used;
	return SUCCESS;
}

/* In this first structure what is reserved counts as used. */
API int nvmlDeviceGetMemoryInfo(const struct unit *unit, struct nvml_memory *memory)
{
	struct readings readings;
	int error = check_any(unit);

	if (!error)
		error = memory ? memory_of(unit, &readings) : INVALID_ARGUMENT;
	if (!error)
		*memory = (struct nvml_memory){readings.total * MIB, readings.free * MIB, (readings.total - readings.free) * MIB};
	return error;
}

API int nvmlDeviceGetMemoryInfo_v2(const struct unit *unit, struct nvml_memory_v2 *memory)
{
	struct readings readings;
	int error = check_any(unit);

	if (!error)
		error = memory ? memory_of(unit, &readings) : INVALID_ARGUMENT;
	if (!error && memory->version != STRUCT_VERSION(sizeof *memory, 2))
		error = ARGUMENT_VERSION_MISMATCH;
	if (!error) {
		memory->total = readings.total * MIB;
		memory->reserved = readings.reserved * MIB;
		memory->free = readings.free * MIB;
		memory->used = readings.used * MIB;
	}
	return error;
}

/* The window is as large as the memory, to the next power of two; a GH200's memory is read without one. */
API int nvmlDeviceGetBAR1MemoryInfo(const struct unit *unit, unsigned long long *window)
{
	int error = check(unit, window);
	unsigned long long mib = 1;

	if (error || is_model(unit->board, "GH200"))
		return error ? error : NOT_SUPPORTED;
	while (mib < unit->board->memory_mib)
		mib <<= 1;
	if (is_architecture(unit->board, "Turing Volta"))
		mib = 256;
	window[0] = mib * MIB;
	window[1] = (mib - 1) * MIB;
	window[2] = MIB;
	return SUCCESS;
}

API int nvmlDeviceGetUtilizationRates(const struct unit *unit, struct nvml_utilization *utilization)
{
	struct readings readings;
	int error = check(unit, utilization);

	if (error || is_divided(unit->board))
		return error ? error : NOT_SUPPORTED;
	read_sensors(unit->board, &readings);
	*utilization = (struct nvml_utilization){readings.gpu, readings.memory};
	return SUCCESS;
}

/* Of a part that nothing uses. */
static int unused_part(const struct unit *unit, unsigned int *percent, unsigned int *period, const char *without)
{
	int error = check(unit, percent);

	if (error || !period)
		return error ? error : INVALID_ARGUMENT;
	if (is_divided(unit->board) || is_architecture(unit->board, without))
		return NOT_SUPPORTED;
	*percent = 0;
	*period = 167000; /* microseconds */
	return SUCCESS;
}

API int nvmlDeviceGetEncoderUtilization(const struct unit *unit, unsigned int *percent, unsigned int *period)
{
	return unused_part(unit, percent, period, "");
}

API int nvmlDeviceGetDecoderUtilization(const struct unit *unit, unsigned int *percent, unsigned int *period)
{
	return unused_part(unit, percent, period, "");
}

API int nvmlDeviceGetJpgUtilization(const struct unit *unit, unsigned int *percent, unsigned int *period)
{
	return unused_part(unit, percent, period, "Volta");
}

API int nvmlDeviceGetOfaUtilization(const struct unit *unit, unsigned int *percent, unsigned int *period)
{
	return unused_part(unit, percent, period, "Volta");
}

API int nvmlDeviceGetEncoderStats(const struct unit *unit, unsigned int *sessions, unsigned int *rate, unsigned int *latency)
{
	int error = check(unit, sessions);

	if (error || !rate || !latency)
		return error ? error : INVALID_ARGUMENT;
	if (!has_encoder(unit->board) && !is_architecture(unit->board, "Hopper"))
		return NOT_SUPPORTED;
	*sessions = *rate = *latency = 0;
	return SUCCESS;
}

API int nvmlDeviceGetTemperature(const struct unit *unit, unsigned int sensor, unsigned int *degrees)
{
	struct readings readings;
	int error = check(unit, degrees);

	if (error || sensor)
		return error ? error : INVALID_ARGUMENT;
	read_sensors(unit->board, &readings);
	*degrees = readings.temperature;
	return SUCCESS;
}

API int nvmlDeviceGetTemperatureV(const struct unit *unit, struct nvml_temperature *temperature)
{
	int error = check(unit, temperature);

	if (!error && temperature->version != STRUCT_VERSION(sizeof *temperature, 1))
		error = ARGUMENT_VERSION_MISMATCH;
	return error ? error : nvmlDeviceGetTemperature(unit, temperature->sensor, (unsigned int *)&temperature->temperature);
}

/* From Ada on there are margins in place of thresholds (nvml.h: nvmlDeviceGetTemperatureThreshold). */
API int nvmlDeviceGetTemperatureThreshold(const struct unit *unit, unsigned int threshold, unsigned int *degrees)
{
	static const unsigned int known[] = {92, 89, 0, 85}; /* shutdown, slowdown, memory, highest operating */
	int error = check(unit, degrees);

	if (error || threshold > 7)
		return error ? error : INVALID_ARGUMENT;
	if (threshold > 3 || !known[threshold] || !is_architecture(unit->board, "Turing Volta Ampere"))
		return NOT_SUPPORTED;
	*degrees = known[threshold];
	return SUCCESS;
}

API int nvmlDeviceGetFanSpeed(const struct unit *unit, unsigned int *percent)
{
	int error = check(unit, percent);

	return error ? error : NOT_SUPPORTED;
}

API int nvmlDeviceGetNumFans(const struct unit *unit, unsigned int *count)
{
	return constant(unit, count, 0);
}

API int nvmlDeviceGetFanSpeed_v2(const struct unit *unit, unsigned int fan, unsigned int *percent)
{
	(void)fan;
	return nvmlDeviceGetFanSpeed(unit, percent);
}

static int milliwatts(const struct unit *unit, unsigned int *answer, double watts)
{
	int error = check(unit, answer);

	if (error || watts < 0)
		return error ? error : NOT_SUPPORTED;
	*answer = rounded(watts * 100) * 10;
	return SUCCESS;
}

/* The board's own; -1 where it tells none. */
static double own_limit(const struct board *board)
{
	return number_of(board, "power_limit_w");
}

/* Watts and fractions of them: "250.0". */
static double fraction(const char *text)
{
	char *end;
	double value = strtoul(text, &end, 10), place = 1;

	if (*end == '.')
		for (end++; *end >= '0' && *end <= '9'; end++)
			value += (*end - '0') * (place /= 10);
	return value;
}

static double set_limit(const struct board *board)
{
	char text[2048];
	const char *value;

	read_settings(board, text, sizeof text);
	value = setting(text, "power");
	return value ? fraction(value) : own_limit(board);
}

static double min_limit(const struct board *board)
{
	static const struct {
		const char *part;
		double watts;
	} known[] = {{"H100 80GB HBM3", 200}, {"H200", 200}, {"GB300", 200}, {"GB200", 200}, {"B200", 200}, {"A100", 100},
	             {"A10G", 100}, {"L40S", 100}, {"T4", 60}};
	unsigned int row;

	for (row = 0; row < sizeof known / sizeof *known && own_limit(board) >= 0; row++)
		if (is_model(board, known[row].part))
			return known[row].watts;
	return own_limit(board) / 3;
}

API int nvmlDeviceGetPowerUsage(const struct unit *unit, unsigned int *power)
{
	struct readings readings;
	int error = check(unit, power);

	if (error)
		return error;
	read_sensors(unit->board, &readings);
	return milliwatts(unit, power, readings.watts);
}

API int nvmlDeviceGetPowerManagementMode(const struct unit *unit, unsigned int *mode)
{
	return constant(unit, mode, 1);
}

API int nvmlDeviceGetPowerManagementLimit(const struct unit *unit, unsigned int *limit)
{
	int error = check(unit, limit);

	return error ? error : milliwatts(unit, limit, set_limit(unit->board));
}

API int nvmlDeviceGetEnforcedPowerLimit(const struct unit *unit, unsigned int *limit)
{
	return nvmlDeviceGetPowerManagementLimit(unit, limit);
}

API int nvmlDeviceGetPowerManagementDefaultLimit(const struct unit *unit, unsigned int *limit)
{
	int error = check(unit, limit);

	return error ? error : milliwatts(unit, limit, own_limit(unit->board));
}

API int nvmlDeviceGetPowerManagementLimitConstraints(const struct unit *unit, unsigned int *lowest, unsigned int *highest)
{
	int error = check(unit, lowest);

	if (!error)
		error = milliwatts(unit, lowest, min_limit(unit->board));
	return error ? error : milliwatts(unit, highest, own_limit(unit->board));
}
