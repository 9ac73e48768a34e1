/* What a board's sensors show at a time: smi/readings.py has the same, and says why. */

struct readings {
	unsigned int gpu, memory;             /* utilisation, % */
	int temperature, memory_temperature; /* degrees Celsius; memory: -1 where the board has no sensor */
	double watts;                        /* -1 where the board does not tell */
	unsigned long long total, reserved, used, free; /* MiB */
	long clocks[CLOCKS];                 /* MHz, -1 where the board has none */
};

static const char *const clock_keys[] = {"clock_graphics_mhz", "clock_sm_mhz", "clock_memory_mhz", "clock_video_mhz"};

/* To the nearest whole number, half to even, as Python rounds. */
static double rounded(double value)
{
	volatile double shifted = value + 6755399441055744.0;

	return shifted - 6755399441055744.0;
}

static double sine(double angle)
{
	double turns = rounded(angle / 6.283185307179586), square, term, sum;
	int row;

	angle = (angle - turns * 6.28318530717958623) - turns * 2.4492935982947064e-16;
	square = angle * angle;
	term = sum = angle;
	for (row = 1; row < 16; row++) {
		term *= -square / ((2 * row) * (2 * row + 1));
		sum += term;
	}
	return sum;
}

static uint32_t crc32(const char *text, uint32_t sum)
{
	int bit;

	for (; *text; text++)
		for (sum ^= (unsigned char)*text, bit = 0; bit < 8; bit++)
			sum = sum >> 1 ^ (sum & 1 ? 0xedb88320 : 0);
	return sum;
}

static double wave(const char *uuid, const char *what, double seconds, double period)
{
	double phase = ~crc32(what, crc32(uuid, ~0u)) / 4294967295.0 * 2 * 3.141592653589793;
	double value = 0.5 + 0.32 * sine(2 * 3.141592653589793 * seconds / period + phase) +
	               0.18 * sine(2 * 3.141592653589793 * seconds / (period * 3.7) + 2 * phase);

	return value < 0 ? 0 : value > 1 ? 1 : value;
}

/* GPU_AMI_SECONDS: the time that a test gives. */
static double now(void)
{
	const char *given = getenv("GPU_AMI_SECONDS");

	return given ? strtoul(given, NULL, 10) : time(NULL);
}

static int has_encoder(const struct board *board)
{
	static const char *const without[] = {"A100", "A30", "H100", "H200", "H20", "B200", "B300", "GB200", "GH200"};
	unsigned int row;

	for (row = 0; row < sizeof without / sizeof *without; row++)
		if (is_model(board, without[row]))
			return 0;
	return 1;
}

static void read_sensors(const struct board *board, struct readings *readings)
{
	double seconds = now(), load = wave(board->uuid, "load", seconds, 600);
	double warmth = wave(board->uuid, "load", seconds - 40, 600); /* follows the load */
	long limit = number_of(board, "power_limit_w"), clock;
	unsigned long long usable;
	int row;

	memset(readings, 0, sizeof *readings);
	readings->gpu = rounded(8 + 84 * load);
	readings->memory = rounded(4 + 56 * load);
	readings->temperature = rounded(31 + 34 * warmth);
	readings->memory_temperature = has_encoder(board) ? -1 : rounded(34 + 36 * warmth);
	readings->watts = limit < 0 ? -1 : rounded(limit * (0.16 + 0.72 * load) * 100) / 100;
	readings->total = board->memory_mib;
	readings->reserved = readings->total / 64 > 256 ? readings->total / 64 : 256;
	usable = readings->total > readings->reserved ? readings->total - readings->reserved : 0;
	readings->used = rounded(usable * (0.10 + 0.55 * wave(board->uuid, "memory", seconds, 1800)));
	readings->free = usable - readings->used;
	for (row = 0; row < CLOCKS; row++) {
		clock = number_of(board, clock_keys[row]);
		if (clock >= 0 && row != CLOCK_MEMORY) { /* memory runs at its full clock in P0 */
			long current = 15 * (long)rounded(clock * (0.55 + 0.45 * load) / 15);

			clock = current < clock ? current : clock;
		}
		readings->clocks[row] = clock;
	}
}
