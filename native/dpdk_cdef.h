/* dpdk_cdef: all that Python may call of DPDK; read by cffi, which understands no preprocessor. The declarations repeat
 * net/dpdk/binding.h, against which the generated C is compiled, so a difference does not build. */

const char *dpdk_version(void);
const char *dpdk_error_text(int error_number);
int dpdk_start(int count, char **arguments);
int dpdk_stop(void);
bool dpdk_is_primary(void);
size_t dpdk_log(char *out, size_t size_bytes);
uint64_t dpdk_logged_bytes(void);

struct dpdk_port_info {
    char name[128];
    char driver[128];
    char bus[128];
    char bus_information[128];
    char interface[128];
    uint8_t mac[6];
    int32_t node;
    uint16_t mtu_min, mtu_max;
    uint16_t receive_queues_max, transmit_queues_max;
    uint16_t receive_queues, transmit_queues;
    uint64_t receive_offloads, transmit_offloads;
};

struct dpdk_link {
    uint32_t speed_mbps;
    bool up;
    bool full_duplex;
    bool negotiated;
};

struct dpdk_port_settings {
    uint16_t receive_queues, transmit_queues;
    uint16_t receive_descriptors, transmit_descriptors;
    uint16_t mtu;
    uint32_t buffers;
    uint64_t receive_offloads, transmit_offloads;
};

struct dpdk_statistics {
    uint64_t frames_in, frames_out, bytes_in, bytes_out;
    uint64_t missed_in, errors_in, errors_out, no_buffer;
};

struct dpdk_counter {
    char name[128];
    uint64_t value;
};

int dpdk_ports(uint16_t *ports, int capacity);
int dpdk_port_info(uint16_t port, struct dpdk_port_info *info);
int dpdk_port_link(uint16_t port, struct dpdk_link *link);
int dpdk_port_set_link(uint16_t port, bool up);
int dpdk_port_mtu(uint16_t port);
int dpdk_port_set_mtu(uint16_t port, uint16_t mtu);
int dpdk_port_start(uint16_t port, const struct dpdk_port_settings *settings);
int dpdk_port_stop(uint16_t port);
int dpdk_port_statistics(uint16_t port, struct dpdk_statistics *statistics);
int dpdk_port_reset_statistics(uint16_t port);
int dpdk_port_extended(uint16_t port, struct dpdk_counter *counters, int capacity);
int dpdk_port_reset_extended(uint16_t port);
const char *dpdk_offload_name(bool transmit, int bit);
int dpdk_port_send(uint16_t port, uint16_t queue, const uint8_t *frames, const uint32_t *lengths, int count);
int dpdk_port_receive(uint16_t port, uint16_t queue, uint8_t *frames, uint32_t frame_bytes, uint32_t *lengths,
                      int count);
int dpdk_attach(const char *device);
int dpdk_detach(uint16_t port);

struct dpdk_memory_zone {
    char name[128];
    uint64_t address, io_address, size_bytes, page_bytes;
    int32_t node;
};

struct dpdk_pool {
    char name[128];
    uint32_t size, available, element_bytes, cache;
    int32_t node;
};

struct dpdk_heap {
    uint64_t total_bytes, free_bytes, allocated_bytes, greatest_free_bytes;
    uint32_t allocations;
};

int dpdk_memory_zones(struct dpdk_memory_zone *zones, int capacity);
int dpdk_pools(struct dpdk_pool *pools, int capacity);
int dpdk_nodes(int32_t *nodes, int capacity);
int dpdk_heap(int32_t node, struct dpdk_heap *heap);
