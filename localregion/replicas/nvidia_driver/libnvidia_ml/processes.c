/* No process runs on these boards. */

static int no_process(const struct unit *unit, unsigned int *count)
{
	int error = check_any(unit);

	if (error || !count)
		return error ? error : INVALID_ARGUMENT;
	*count = 0;
	return SUCCESS;
}

#define PROCESSES(name) \
	API int name(const struct unit *unit, unsigned int *count, void *rows) \
	{ \
		(void)rows; \
		return no_process(unit, count); \
	}

PROCESSES(nvmlDeviceGetComputeRunningProcesses)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)
