/* Versions: VERSION is the library's own, "550.163.01". */

/* Release notes of the CUDA toolkit, table 3: the first branch of each release. */
static const struct {
	int branch, cuda;
} table[] = {
	{450, 11000}, {455, 11010}, {460, 11020}, {465, 11030}, {470, 11040}, {495, 11050}, {510, 11060}, {515, 11070},
	{520, 11080}, {525, 12000}, {530, 12010}, {535, 12020}, {545, 12030}, {550, 12040}, {555, 12050}, {560, 12060},
	{565, 12070}, {570, 12080}, {575, 12090}, {580, 13000}, {590, 13010}, {595, 13020}, {610, 13030},
	{615, 13040}, {620, 13050},
};

static int branch_of(const char *version)
{
	return strtoul(version, NULL, 10);
}

/* The newest CUDA that the library supports: 12040 for 12.4, as in cuda.h (CUDA_VERSION). */
static int cuda_version(void)
{
	unsigned int row;
	int version = 0;

	for (row = 0; row < sizeof table / sizeof *table; row++)
		if (table[row].branch <= branch_of(VERSION))
			version = table[row].cuda;
	return version;
}

/* The version of the loaded module, without a patch of the kernel's name; 0 where no module answers. */
static int loaded_version(char *version, size_t bytes)
{
	char text[512];
	const char *at;
	size_t count = 0;

	if (read_file("/proc/driver/nvidia/version", text, sizeof text) <= 0)
		return 0;
	for (at = text; *at && !(at[0] == ' ' && at[1] >= '1' && at[1] <= '9' && at[4] == '.'); at++)
		;
	while (*at && *++at > ' ' && count < bytes - 1)
		version[count++] = *at;
	version[count] = '\0';
	return 1;
}
