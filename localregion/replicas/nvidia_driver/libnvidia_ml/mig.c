/* MIG, as nvidia-smi has divided the board (smi/settings.py). A GPU instance has one compute instance; the handles of both are
 * that of the MIG device. */

API int nvmlDeviceGetMigMode(const struct unit *unit, unsigned int *current, unsigned int *pending)
{
	int error = check(unit, current);
	char text[2048];

	if (error || !pending)
		return error ? error : INVALID_ARGUMENT;
	if (!is_divisible(unit->board))
		return NOT_SUPPORTED;
	read_settings(unit->board, text, sizeof text);
	*current = is_set(text, "mig");
	*pending = is_set(text, "pending_mig");
	return SUCCESS;
}

API int nvmlDeviceGetMaxMigDeviceCount(const struct unit *unit, unsigned int *count)
{
	int error = check(unit, count);

	if (!error)
		*count = is_divisible(unit->board) ? SLICES : 0;
	return error;
}

API int nvmlDeviceIsMigDeviceHandle(const struct unit *unit, unsigned int *is)
{
	int error = check_any(unit);

	if (error || !is)
		return error ? error : INVALID_ARGUMENT;
	*is = is_mig(unit);
	return SUCCESS;
}

API int nvmlDeviceGetMigDeviceHandleByIndex(const struct unit *unit, unsigned int index, const struct unit **part)
{
	int error = check(unit, part);
	char profiles[SLICES][32];

	if (error)
		return error;
	if (!is_divisible(unit->board))
		return NOT_SUPPORTED;
	if (index >= SLICES)
		return INVALID_ARGUMENT;
	if ((int)index >= list_instances(unit->board, profiles))
		return NOT_FOUND;
	*part = unit + 1 + index;
	return SUCCESS;
}

API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(const struct unit *part, const struct unit **unit)
{
	int error = check_any(part);

	if (error || !unit || !is_mig(part))
		return error ? error : INVALID_ARGUMENT;
	*unit = units[index_of(part)];
	return SUCCESS;
}

static int of_part(const struct unit *part, unsigned int *answer, unsigned int value)
{
	int error = check_any(part);

	if (error || !answer)
		return error ? error : INVALID_ARGUMENT;
	if (!is_mig(part))
		return NOT_SUPPORTED;
	*answer = value;
	return SUCCESS;
}

API int nvmlDeviceGetGpuInstanceId(const struct unit *part, unsigned int *id)
{
	return of_part(part, id, part ? part->part + 1 : 0);
}

API int nvmlDeviceGetComputeInstanceId(const struct unit *part, unsigned int *id)
{
	return of_part(part, id, 0);
}

API int nvmlDeviceGetAttributes_v2(const struct unit *part, struct nvml_attributes *attributes)
{
	unsigned int slices;
	struct readings readings;
	char profiles[SLICES][32];
	int error = of_part(part, (unsigned int *)attributes, 0);

	if (!error)
		error = memory_of(part, &readings);
	if (error)
		return error;
	list_instances(part->board, profiles);
	slices = strtoul(profiles[part->part], NULL, 10);
	*attributes = (struct nvml_attributes){14 * slices, slices, slices / 2, 0, 0, 0, slices, slices, readings.total};
	return SUCCESS;
}

API int nvmlDeviceGetAttributes(const struct unit *part, struct nvml_attributes *attributes)
{
	return nvmlDeviceGetAttributes_v2(part, attributes);
}

static unsigned int slices_of(const struct unit *part)
{
	char profiles[SLICES][32];

	return part->part < list_instances(part->board, profiles) ? strtoul(profiles[part->part], NULL, 10) : 0;
}

/* Slices of NVML_GPU_INSTANCE_PROFILE_*, and the ids that `nvidia-smi mig -lgip` shows of an A100. */
static const struct {
	unsigned int slices, id;
} gpu_profiles[] = {{1, 19}, {2, 14}, {3, 9}, {4, 5}, {7, 0}};

enum { PROFILES = sizeof gpu_profiles / sizeof *gpu_profiles, ALL_PROFILES = 18 };

API int nvmlDeviceGetGpuInstanceProfileInfo(const struct unit *unit, unsigned int profile, struct nvml_gpu_profile *info)
{
	int error = check(unit, info);
	unsigned int slices;

	if (error || profile >= ALL_PROFILES)
		return error ? error : INVALID_ARGUMENT;
	if (!is_divisible(unit->board) || profile >= PROFILES)
		return NOT_SUPPORTED;
	slices = gpu_profiles[profile].slices;
	*info = (struct nvml_gpu_profile){.id = gpu_profiles[profile].id, .slices = slices, .instances = SLICES / slices,
	                                  .multiprocessors = 14 * slices, .copy_engines = slices, .decoders = slices / 2,
	                                  .memory_mib = unit->board->memory_mib * slices / SLICES};
	return SUCCESS;
}

API int nvmlDeviceGetGpuInstanceById(const struct unit *unit, unsigned int id, const struct unit **instance)
{
	char profiles[SLICES][32];
	int error = check(unit, instance);

	if (error)
		return error;
	if (!is_divisible(unit->board))
		return NOT_SUPPORTED;
	if (!id || (int)id > list_instances(unit->board, profiles))
		return NOT_FOUND;
	*instance = unit + id;
	return SUCCESS;
}

API int nvmlGpuInstanceGetInfo(const struct unit *instance, struct nvml_gpu_instance *info)
{
	char profiles[SLICES][32];
	int error = of_part(instance, (unsigned int *)info, 0), other;
	unsigned int profile, slices;

	if (error)
		return error;
	slices = slices_of(instance);
	list_instances(instance->board, profiles);
	*info = (struct nvml_gpu_instance){.device = units[index_of(instance)], .id = instance->part + 1,
	                                   .placement = {.size = slices}};
	for (other = 0; other < instance->part; other++)
		info->placement.start += strtoul(profiles[other], NULL, 10);
	for (profile = 0; profile < PROFILES; profile++)
		if (gpu_profiles[profile].slices == slices)
			info->profile = gpu_profiles[profile].id;
	return SUCCESS;
}

API int nvmlGpuInstanceGetComputeInstanceById(const struct unit *instance, unsigned int id, const struct unit **compute)
{
	int error = of_part(instance, (unsigned int *)compute, 0);

	if (error || id)
		return error ? error : NOT_FOUND;
	*compute = instance;
	return SUCCESS;
}

/* The whole GPU instance alone. */
API int nvmlGpuInstanceGetComputeInstanceProfileInfo(const struct unit *instance, unsigned int profile, unsigned int engine,
                                                     struct nvml_compute_profile *info)
{
	int error = of_part(instance, (unsigned int *)info, 0);
	unsigned int slices;

	if (error || profile > 8 || engine)
		return error ? error : INVALID_ARGUMENT;
	slices = slices_of(instance);
	if (profile >= PROFILES || gpu_profiles[profile].slices != slices)
		return NOT_SUPPORTED;
	*info = (struct nvml_compute_profile){.id = profile, .slices = slices, .instances = 1, .multiprocessors = 14 * slices,
	                                      .copy_engines = slices, .decoders = slices / 2};
	return SUCCESS;
}

API int nvmlComputeInstanceGetInfo_v2(const struct unit *compute, struct nvml_compute_instance *info)
{
	int error = of_part(compute, (unsigned int *)info, 0);
	unsigned int profile, slices;

	if (error)
		return error;
	slices = slices_of(compute);
	*info = (struct nvml_compute_instance){.device = units[index_of(compute)], .gpu_instance = compute,
	                                       .placement = {.size = slices}};
	for (profile = 0; profile < PROFILES; profile++)
		if (gpu_profiles[profile].slices == slices)
			info->profile = profile;
	return SUCCESS;
}

API int nvmlComputeInstanceGetInfo(const struct unit *compute, struct nvml_compute_instance *info)
{
	struct nvml_compute_instance whole;
	int error = nvmlComputeInstanceGetInfo_v2(compute, info ? &whole : NULL);

	if (!error)
		memcpy(info, &whole, offsetof(struct nvml_compute_instance, placement));
	return error;
}
