/* libnccl: which release it is. VERSION is "2.21.5". */

static int number(const char **text)
{
	int value = 0;

	while (**text >= '0' && **text <= '9')
		value = value * 10 + *(*text)++ - '0';
	if (**text == '.')
		++*text;
	return value;
}

/* nccl.h (NCCL_VERSION): 22105 for 2.21.5, 2808 for 2.8.8; 0 is ncclSuccess, 4 ncclInvalidArgument. */
int ncclGetVersion(int *version)
{
	const char *text = VERSION;
	int major, minor, patch;

	if (!version)
		return 4;
	major = number(&text);
	minor = number(&text);
	patch = number(&text);
	*version = major * (major <= 2 && minor <= 8 ? 1000 : 10000) + minor * 100 + patch;
	return 0;
}
