/*
 * libcudnn: which release it is, and for which CUDA. VERSION is "9.1.0.70"; CUDA the package's major version ("12"), or ""
 * below version 9, where FULL_VERSION ends with it ("8.7.0.84-1+cuda11.6").
 */

static int number(const char **text)
{
	int value = 0;

	while (**text >= '0' && **text <= '9')
		value = value * 10 + *(*text)++ - '0';
	if (**text == '.')
		++*text;
	return value;
}

/* cudnn_version.h: 90100 for 9.1.0, 8700 for 8.7.0. */
unsigned long cudnnGetVersion(void)
{
	const char *text = VERSION;
	int major = number(&text), minor = number(&text), patch = number(&text);

	return major * (major < 9 ? 1000 : 10000) + minor * 100 + patch;
}

/* The CUDA runtime that it was built with, 12000 for 12.0. */
unsigned long cudnnGetCudartVersion(void)
{
	const char *text = CUDA;
	int major, minor;

	if (!*text) {
		text = FULL_VERSION;
		while (*text && *text != '+')
			text++;
		while (*text && (*text < '0' || *text > '9'))
			text++;
	}
	major = number(&text);
	minor = number(&text);
	return major * 1000 + minor * 10;
}
