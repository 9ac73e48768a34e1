/* The newest CUDA that the driver of its version supports. VERSION is "550.163.01". */

/* Release notes of the CUDA toolkit, table 3: the first branch of each release. */
static const struct {
	int branch, cuda;
} table[] = {
	{450, 11000}, {455, 11010}, {460, 11020}, {465, 11030}, {470, 11040}, {495, 11050}, {510, 11060}, {515, 11070},
	{520, 11080}, {525, 12000}, {530, 12010}, {535, 12020}, {545, 12030}, {550, 12040}, {555, 12050}, {560, 12060},
	{565, 12070}, {570, 12080}, {575, 12090}, {580, 13000}, {590, 13010}, {595, 13020}, {610, 13030},
	{615, 13040}, {620, 13050},
};

/* 12040 for 12.4, as in cuda.h (CUDA_VERSION); 0 is CUDA_SUCCESS, 1 CUDA_ERROR_INVALID_VALUE. */
API int cuDriverGetVersion(int *version)
{
	const char *text = VERSION;
	unsigned int row;
	int branch = 0;

	if (!version)
		return 1;
	while (*text >= '0' && *text <= '9')
		branch = branch * 10 + *text++ - '0';
	*version = 0;
	for (row = 0; row < sizeof table / sizeof *table; row++)
		if (table[row].branch <= branch)
			*version = table[row].cuda;
	return 0;
}
