/*
 * Memory of the boards. Its addresses are the boards' own: no host program can use them, and a kernel that uses an address of
 * nothing, or of a GPU without peer access, faults. A board backs FREE_BYTES of its memory, which cuMemGetInfo tells.
 */

#define ALLOCATIONS 256
#define FREE_BYTES ((uint64_t)8 << 20)
#define FIRST_ADDRESS ((uint64_t)0x700000000000)

struct allocation {
	uint64_t address, bytes;
	unsigned char *host;
	int device;
};

static struct allocation allocations[ALLOCATIONS];
static uint64_t next_address = FIRST_ADDRESS, used[DEVICES];
static unsigned char peers[DEVICES][DEVICES]; /* [device][other]: enabled */

static struct allocation *last = allocations; /* most accesses are near the one before */

static int reaches(int device, const struct allocation *allocation)
{
	return allocation->device == device || peers[device][allocation->device];
}

static int holds(const struct allocation *row, int device, uint64_t address, uint64_t bytes)
{
	return row->bytes && address >= row->address && bytes <= row->bytes && address - row->address <= row->bytes - bytes &&
	       reaches(device, row);
}

/* The host's copy of device memory; NULL unless the device reaches all of it. */
static unsigned char *translate(int device, uint64_t address, uint64_t bytes)
{
	struct allocation *row = last;

	if (!holds(row, device, address, bytes))
		for (row = allocations; row < allocations + ALLOCATIONS && !holds(row, device, address, bytes); row++)
			;
	if (row == allocations + ALLOCATIONS)
		return NULL;
	last = row;
	return row->host + (address - row->address);
}

static int allocate(int device, uint64_t *address, uint64_t bytes)
{
	struct allocation *row;
	void *host;

	if (!bytes)
		return INVALID_VALUE;
	for (row = allocations; row < allocations + ALLOCATIONS && row->bytes; row++)
		;
	if (row == allocations + ALLOCATIONS || bytes > FREE_BYTES - used[device])
		return OUT_OF_MEMORY;
	host = mmap(NULL, bytes, READABLE_WRITABLE, PRIVATE_ANONYMOUS, -1, 0);
	if (host == (void *)-1)
		return OUT_OF_MEMORY;
	row->address = *address = next_address;
	row->bytes = bytes;
	row->host = host;
	row->device = device;
	used[device] += bytes;
	next_address += (bytes + 0xffffff) & ~(uint64_t)0xfffff;
	return SUCCESS;
}

static int release(uint64_t address)
{
	struct allocation *row;

	for (row = allocations; row < allocations + ALLOCATIONS; row++)
		if (row->bytes && row->address == address) {
			munmap(row->host, row->bytes);
			used[row->device] -= row->bytes;
			row->bytes = 0;
			return SUCCESS;
		}
	return INVALID_VALUE;
}
