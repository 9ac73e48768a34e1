/* What a handle (nvmlDevice_t) is of: a board, or one of its MIG devices. */

struct unit {
	struct board *board;
	int part; /* number of the MIG device; -1: the board */
};

static struct board boards[DEVICES];
static struct unit units[DEVICES][1 + SLICES];
static int board_count, references; /* references: of nvmlInit without nvmlShutdown */

static int is_mig(const struct unit *unit)
{
	return unit->part >= 0;
}

static int index_of(const struct unit *unit)
{
	return unit->board - boards;
}

/* Any handle. */
static int check_any(const struct unit *unit)
{
	if (!references)
		return UNINITIALIZED;
	if ((const char *)unit < (const char *)units || (const char *)unit >= (const char *)units[board_count] ||
	    ((const char *)unit - (const char *)units) % sizeof *unit)
		return INVALID_ARGUMENT;
	return SUCCESS;
}

/* A handle of a board, and the place of an answer. What a board has, its MIG devices have not, where nvml.h does not say so. */
static int check(const struct unit *unit, const void *answer)
{
	int error = check_any(unit);

	return error ? error : !answer ? INVALID_ARGUMENT : is_mig(unit) ? NOT_SUPPORTED : SUCCESS;
}

static int copy_text(const char *text, char *target, unsigned int bytes)
{
	if (!references)
		return UNINITIALIZED;
	if (!target)
		return INVALID_ARGUMENT;
	if (strlen(text) >= bytes)
		return INSUFFICIENT_SIZE;
	snprintf(target, bytes, "%s", text);
	return SUCCESS;
}

/* A whole number of the board's description; -1 where it has none. */
static long number_of(const struct board *board, const char *key)
{
	char value[64];

	if (!value_of(board->text, key, value, sizeof value) || value[0] < '0' || value[0] > '9')
		return -1;
	return strtoul(value, NULL, 10);
}

static int is_architecture(const struct board *board, const char *names)
{
	return board->architecture[0] && strstr(names, board->architecture) != NULL;
}

/* GPUs that can be divided (smi/settings.py). */
static int is_divisible(const struct board *board)
{
	unsigned int capability = board->major_capability * 10 + board->minor_capability;

	return capability == 80 || capability == 90 || capability == 100 || capability == 103;
}

static int is_divided(const struct board *board)
{
	char text[2048];

	return read_settings(board, text, sizeof text) && is_set(text, "mig");
}

static int has_ecc(const struct board *board)
{
	return board->architecture[0] && !is_architecture(board, "Maxwell Kepler Pascal");
}
