/* libnvidia-container: which release it is (nvc.h). VERSION is "1.18.1". */

struct nvc_version {
	unsigned int major, minor, patch;
	const char *string;
};

static unsigned int number(const char **text)
{
	unsigned int value = 0;

	while (**text >= '0' && **text <= '9')
		value = value * 10 + *(*text)++ - '0';
	if (**text == '.')
		++*text;
	return value;
}

const struct nvc_version *nvc_version(void)
{
	static struct nvc_version version;
	const char *text = VERSION;

	version.major = number(&text);
	version.minor = number(&text);
	version.patch = number(&text);
	version.string = VERSION;
	return &version;
}
