/* Texts of nvmlErrorString: those of 4, 9, 18, 26 and 999 as programs print them; others as nvml.h describes the error. */
static const struct {
	int number;
	const char *text;
} errors[] = {
	{0, "Success"}, {1, "Uninitialized"}, {2, "Invalid Argument"}, {3, "Not Supported"}, {4, "Insufficient Permissions"},
	{5, "Already Initialized"}, {6, "Not Found"}, {7, "Insufficient Size"}, {8, "Insufficient External Power"},
	{9, "Driver Not Loaded"}, {10, "Timeout"}, {11, "Interrupt Request Issue"}, {12, "NVML Shared Library Not Found"},
	{13, "Function Not Found"}, {14, "Corrupted infoROM"}, {15, "GPU is lost"}, {16, "GPU requires reset"},
	{17, "GPU access blocked by the operating system"}, {18, "Driver/library version mismatch"},
	{19, "In use by another client"}, {20, "Insufficient Memory"}, {21, "No data"},
	{25, "Argument version mismatch"}, {26, "Requested functionality has been deprecated"}, {999, "Unknown Error"},
};

API const char *nvmlErrorString(int number)
{
	unsigned int row;

	for (row = 0; row < sizeof errors / sizeof *errors; row++)
		if (errors[row].number == number)
			return errors[row].text;
	return "Unknown Error";
}
