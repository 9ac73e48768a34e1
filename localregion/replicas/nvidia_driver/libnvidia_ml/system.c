/* The library's start, and what is of the machine. */

/* /dev/nvidiactl that the process may not open: by its mode or by SELinux (NVIDIA/nvidia-container-toolkit#210), or by the
 * cgroup of a container ("Failed to initialize NVML: Unknown Error", NVIDIA/nvidia-container-toolkit#48). */
static int access_error(int number)
{
	return number == NO_ACCESS ? NO_PERMISSION : number == NOT_PERMITTED ? UNKNOWN : DRIVER_NOT_LOADED;
}

static void find_boards(void)
{
	static char addresses[DEVICES][32];
	int count = list_boards(addresses), row, part;
	char node[32];

	board_count = 0;
	for (row = 0; row < count; row++) {
		struct board *board = &boards[board_count];

		if (!read_board(addresses[row], board))
			continue;
		snprintf(node, sizeof node, "/dev/nvidia%u", board->minor);
		if (open_error(node)) /* a container has the nodes of its own GPUs */
			continue;
		for (part = 0; part <= SLICES; part++)
			units[board_count][part] = (struct unit){board, part - 1};
		board_count++;
	}
}

API int nvmlInitWithFlags(unsigned int flags)
{
	char loaded[32];
	int number;

	(void)flags; /* NVML_INIT_FLAG_NO_GPUS and NO_ATTACH forbid what does not happen here */
	if (!references) {
		if (!loaded_version(loaded, sizeof loaded))
			return DRIVER_NOT_LOADED;
		number = open_error("/dev/nvidiactl");
		if (number)
			return access_error(number);
		if (strcmp(loaded, VERSION))
			return VERSION_MISMATCH;
		find_boards();
	}
	references++;
	return SUCCESS;
}

API int nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

API int nvmlInit(void)
{
	return nvmlInitWithFlags(0);
}

API int nvmlShutdown(void)
{
	if (!references)
		return UNINITIALIZED;
	references--;
	return SUCCESS;
}

API int nvmlSystemGetDriverVersion(char *version, unsigned int bytes)
{
	return copy_text(VERSION, version, bytes);
}

/* "12.550.163.01": CUDA's major version stands before the driver's. */
API int nvmlSystemGetNVMLVersion(char *version, unsigned int bytes)
{
	char text[64];

	snprintf(text, sizeof text, "%d.%s", cuda_version() / 1000, VERSION);
	return copy_text(text, version, bytes);
}

API int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	if (!version)
		return INVALID_ARGUMENT;
	*version = cuda_version();
	return SUCCESS;
}

API int nvmlSystemGetCudaDriverVersion(int *version)
{
	return nvmlSystemGetCudaDriverVersion_v2(version);
}

API int nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int bytes)
{
	char path[64], text[512];

	if (!references)
		return UNINITIALIZED;
	if (!name || !bytes)
		return INVALID_ARGUMENT;
	snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
	if (read_file(path, text, sizeof text) <= 0)
		return NOT_FOUND;
	snprintf(name, bytes, "%s", text);
	return SUCCESS;
}
