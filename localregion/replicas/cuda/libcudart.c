/* libcudart: which release it is. VERSION is "12.4.1". */

static int number(const char **text)
{
	int value = 0;

	while (**text >= '0' && **text <= '9')
		value = value * 10 + *(*text)++ - '0';
	if (**text == '.')
		++*text;
	return value;
}

/* 12040 for 12.4, as in cuda_runtime_api.h (CUDART_VERSION); 0 is cudaSuccess, 1 cudaErrorInvalidValue. */
int cudaRuntimeGetVersion(int *version)
{
	const char *text = VERSION;
	int major, minor;

	if (!version)
		return 1;
	major = number(&text);
	minor = number(&text);
	*version = major * 1000 + minor * 10;
	return 0;
}
