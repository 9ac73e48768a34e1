/* Types and numbers of NVML that the library uses: nvml.h of NVIDIA's go-nvml 0.13.4 (2026-11-29), written anew. */

enum {
	SUCCESS = 0,
	UNINITIALIZED = 1,
	INVALID_ARGUMENT = 2,
	NOT_SUPPORTED = 3,
	NO_PERMISSION = 4,
	NOT_FOUND = 6,
	INSUFFICIENT_SIZE = 7,
	DRIVER_NOT_LOADED = 9,
	VERSION_MISMATCH = 18, /* NVML_ERROR_LIB_RM_VERSION_MISMATCH */
	ARGUMENT_VERSION_MISMATCH = 25,
	DEPRECATED = 26,
	UNKNOWN = 999,
};

enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY, CLOCK_VIDEO, CLOCKS };
enum { BRAND_NVIDIA = 14, BUS_PCIE = 2, PASSTHROUGH = 1, ADDRESSING_NONE = 0, ADDRESSING_HMM = 1 };
enum { PATH_HOST_BRIDGE = 30, PATH_SYSTEM = 50 };
enum { LOCATION_L1, LOCATION_L2, LOCATION_DRAM, LOCATION_REGISTERS, LOCATION_TEXTURE, LOCATION_SHARED, LOCATION_CBU, LOCATION_SRAM };
enum { FABRIC_NOT_SUPPORTED = 0, FABRIC_IN_PROGRESS = 2, FABRIC_COMPLETED = 3 };
enum { MAX_LINKS = 18 }; /* NVML_NVLINK_MAX_LINKS */

struct nvml_pci { /* nvmlPciInfo_t */
	char legacy_bus_id[16];
	unsigned int domain, bus, device, device_id, subsystem_id;
	char bus_id[32];
};
struct nvml_pci_ext { /* nvmlPciInfoExt_v1_t */
	unsigned int version, domain, bus, device, device_id, subsystem_id, base_class, sub_class;
	char bus_id[32];
};
struct nvml_memory { /* nvmlMemory_t, nvmlBAR1Memory_t have the same three in their orders */
	unsigned long long total, free, used;
};
struct nvml_memory_v2 {
	unsigned int version;
	unsigned long long total, reserved, free, used;
};
struct nvml_utilization {
	unsigned int gpu, memory;
};
struct nvml_temperature { /* nvmlTemperature_v1_t */
	unsigned int version, sensor;
	int temperature;
};
struct nvml_ecc_counts {
	unsigned long long l1, l2, device_memory, registers;
};
struct nvml_attributes { /* nvmlDeviceAttributes_t */
	unsigned int multiprocessors, copy_engines, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices;
	unsigned long long memory_mib;
};
struct nvml_histogram { /* nvmlRowRemapperHistogramValues_t */
	unsigned int max, high, partial, low, none;
};
struct nvml_fabric { /* nvmlGpuFabricInfo_t */
	unsigned char cluster[16];
	unsigned int status, clique;
	unsigned char state;
};
struct nvml_fabric_v { /* nvmlGpuFabricInfo_v2_t; v3 adds the summary */
	unsigned int version;
	unsigned char cluster[16];
	unsigned int status, clique;
	unsigned char state;
	unsigned int health_mask;
	unsigned char health_summary;
};
struct nvml_field { /* nvmlFieldValue_t */
	unsigned int id, scope;
	long long timestamp, latency;
	unsigned int type, status;
	union {
		double real;
		unsigned int whole;
		unsigned long long wide;
	} value;
};
struct nvml_addressing { /* nvmlDeviceAddressingMode_v1_t */
	unsigned int version, value;
};

struct nvml_placement {
	unsigned int start, size;
};
struct nvml_gpu_instance { /* nvmlGpuInstanceInfo_t */
	const struct unit *device;
	unsigned int id, profile;
	struct nvml_placement placement;
};
struct nvml_compute_instance { /* nvmlComputeInstanceInfo_t; the first version ends with the profile */
	const struct unit *device, *gpu_instance;
	unsigned int id, profile;
	struct nvml_placement placement;
};
struct nvml_gpu_profile { /* nvmlGpuInstanceProfileInfo_t */
	unsigned int id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
	unsigned long long memory_mib;
};
struct nvml_compute_profile { /* nvmlComputeInstanceProfileInfo_t */
	unsigned int id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
};

/* NVML_STRUCT_VERSION */
#define STRUCT_VERSION(bytes, number) ((unsigned int)((bytes) | (number) << 24))
