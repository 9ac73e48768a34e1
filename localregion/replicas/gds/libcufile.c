/* libcufile: which release it is. VERSION is "1.18.1.6". */

static int number(const char **text)
{
	int value = 0;

	while (**text >= '0' && **text <= '9')
		value = value * 10 + *(*text)++ - '0';
	if (**text == '.')
		++*text;
	return value;
}

/* cufile.h: err 0 is CU_FILE_SUCCESS, 5001 + 21 CU_FILE_INVALID_VALUE; cu_err is CUDA's. */
typedef struct {
	int err, cu_err;
} CUfileError_t;

/* 1180 for 1.18: 1000 * major + 10 * minor. */
CUfileError_t cuFileGetVersion(int *version)
{
	CUfileError_t status = {0, 0};
	const char *text = VERSION;
	int major, minor;

	if (!version) {
		status.err = 5022;
		return status;
	}
	major = number(&text);
	minor = number(&text);
	*version = 1000 * major + 10 * minor;
	return status;
}
