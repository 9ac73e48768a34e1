/* Errors of memory. The counters are zero. */

API int nvmlDeviceGetEccMode(const struct unit *unit, unsigned int *current, unsigned int *pending)
{
	int error = check(unit, current);

	if (error || !pending)
		return error ? error : INVALID_ARGUMENT;
	if (!has_ecc(unit->board))
		return NOT_SUPPORTED;
	*current = *pending = 1;
	return SUCCESS;
}

API int nvmlDeviceGetDefaultEccMode(const struct unit *unit, unsigned int *mode)
{
	unsigned int pending;

	return nvmlDeviceGetEccMode(unit, mode, &pending);
}

static int zero(const struct unit *unit, unsigned int kind, unsigned int counter, unsigned long long *count)
{
	int error = check(unit, count);

	if (error || kind > 1 || counter > 1)
		return error ? error : INVALID_ARGUMENT;
	if (!has_ecc(unit->board))
		return NOT_SUPPORTED;
	*count = 0;
	return SUCCESS;
}

API int nvmlDeviceGetTotalEccErrors(const struct unit *unit, unsigned int kind, unsigned int counter, unsigned long long *count)
{
	return zero(unit, kind, counter, count);
}

/* A Volta has counters by place (a V100 with 550.127.05); later ones of L2, DRAM and SRAM. */
API int nvmlDeviceGetMemoryErrorCounter(const struct unit *unit, unsigned int kind, unsigned int counter, unsigned int location,
                                        unsigned long long *count)
{
	int error = zero(unit, kind, counter, count), of_volta;

	if (error || location > LOCATION_SRAM)
		return error ? error : INVALID_ARGUMENT;
	of_volta = is_architecture(unit->board, "Volta");
	if (location == LOCATION_L1 || location == LOCATION_REGISTERS)
		return of_volta ? SUCCESS : NOT_SUPPORTED;
	if (location == LOCATION_CBU)
		return of_volta && kind == 1 ? SUCCESS : NOT_SUPPORTED;
	return location == LOCATION_TEXTURE || location == LOCATION_SHARED || (of_volta && location == LOCATION_SRAM) ? NOT_SUPPORTED
	                                                                                                        : SUCCESS;
}

API int nvmlDeviceGetDetailedEccErrors(const struct unit *unit, unsigned int kind, unsigned int counter,
                                       struct nvml_ecc_counts *counts)
{
	int error = zero(unit, kind, counter, (unsigned long long *)counts);

	if (!error)
		memset(counts, 0, sizeof *counts);
	return error;
}

/* Pages are retired before Ampere; from Ampere on rows are remapped. */
API int nvmlDeviceGetRetiredPages(const struct unit *unit, unsigned int cause, unsigned int *count, unsigned long long *pages)
{
	int error = check(unit, count);

	(void)pages;
	if (error || cause > 1)
		return error ? error : INVALID_ARGUMENT;
	if (!is_architecture(unit->board, "Volta Turing"))
		return NOT_SUPPORTED;
	*count = 0;
	return SUCCESS;
}

API int nvmlDeviceGetRetiredPagesPendingStatus(const struct unit *unit, unsigned int *pending)
{
	int error = check(unit, pending);

	if (!error && !is_architecture(unit->board, "Volta Turing"))
		error = NOT_SUPPORTED;
	return error ? error : constant(unit, pending, 0);
}

static int remaps(const struct board *board)
{
	return has_ecc(board) && !is_architecture(board, "Volta Turing");
}

API int nvmlDeviceGetRemappedRows(const struct unit *unit, unsigned int *corrected, unsigned int *uncorrected,
                                  unsigned int *pending, unsigned int *failed)
{
	int error = check(unit, corrected);

	if (error || !uncorrected || !pending || !failed)
		return error ? error : INVALID_ARGUMENT;
	if (!remaps(unit->board) || is_divided(unit->board))
		return NOT_SUPPORTED;
	*corrected = *uncorrected = *pending = *failed = 0;
	return SUCCESS;
}

/* Banks: smi/query.py. */
API int nvmlDeviceGetRowRemapperHistogram(const struct unit *unit, struct nvml_histogram *values)
{
	static const struct {
		const char *part;
		unsigned int banks;
	} known[] = {{"H100 80GB HBM3", 2560}, {"H200", 3072}, {"GB300", 5952}, {"GB200", 3968}, {"B200", 3840}};
	int error = check(unit, values);
	unsigned int row;

	if (error || !remaps(unit->board))
		return error ? error : NOT_SUPPORTED;
	memset(values, 0, sizeof *values);
	values->max = unit->board->nvlinks ? 640 : 192;
	for (row = sizeof known / sizeof *known; row--;)
		if (is_model(unit->board, known[row].part))
			values->max = known[row].banks;
	return SUCCESS;
}
