/* nvmlDeviceGetFieldValues: those fields that a function of this library answers, too. */

/* A name that no original has: programs may tell whose result they got. */
API const char gpu_ami_replica[] = "gpu-ami replica of libnvidia-ml " VERSION;

static int field_value(const struct unit *unit, struct nvml_field *field)
{
	unsigned int rows[4], other;
	struct readings readings;
	int error;

	field->type = 1; /* unsigned int */
	switch (field->id) {
	case 1: /* ECC mode, and the pending one */
	case 2:
		return nvmlDeviceGetEccMode(unit, &field->value.whole, &other);
	case 82:
		read_sensors(unit->board, &readings);
		field->value.whole = readings.memory_temperature;
		return readings.memory_temperature < 0 ? NOT_SUPPORTED : SUCCESS;
	case 91:
		field->value.whole = unit->board->nvlinks;
		return SUCCESS;
	case 142: /* remapped rows: corrected, uncorrected, pending, failed */
	case 143:
	case 144:
	case 145:
		error = nvmlDeviceGetRemappedRows(unit, &rows[0], &rows[1], &rows[2], &rows[3]);
		field->value.whole = error ? 0 : rows[field->id - 142];
		return error;
	case 185: /* a Volta, a Turing and an A100 do not average their power (smi/query.py) */
		if (is_architecture(unit->board, "Volta Turing") || is_model(unit->board, "A100"))
			return NOT_SUPPORTED;
		return nvmlDeviceGetPowerUsage(unit, &field->value.whole);
	case 186:
		return nvmlDeviceGetPowerUsage(unit, &field->value.whole);
	case 187:
		return nvmlDeviceGetPowerManagementLimitConstraints(unit, &field->value.whole, &other);
	case 188:
		return nvmlDeviceGetPowerManagementLimitConstraints(unit, &other, &field->value.whole);
	case 189:
		return nvmlDeviceGetPowerManagementDefaultLimit(unit, &field->value.whole);
	case 190:
	case 192:
		return nvmlDeviceGetPowerManagementLimit(unit, &field->value.whole);
	}
	return NOT_SUPPORTED;
}

API int nvmlDeviceGetFieldValues(const struct unit *unit, int count, struct nvml_field *fields)
{
	int error = check(unit, fields), row;

	if (error || count < 1)
		return error ? error : INVALID_ARGUMENT;
	for (row = 0; row < count; row++) {
		fields[row].timestamp = now() * 1000000;
		fields[row].latency = 0;
		fields[row].value.wide = 0;
		fields[row].status = field_value(unit, &fields[row]);
	}
	return SUCCESS;
}
