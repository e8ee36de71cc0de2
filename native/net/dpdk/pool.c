/* pool: AF_XDP's driver tells the kernel of the pool's first piece of memory, as long as so many frames one behind the other.
 * DPDK's own pools have one frame a page where pages are small: those in the last two fifths of such a pool lie beyond what
 * the kernel knows, it refuses each of them, and sending stalls once they come round. */
#include "net/dpdk/pool.h"

#include <string.h>

#include <rte_errno.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>

#define ETHERNET_MORE_BYTES 18u /* header and checksum */
#define XDP_HEADROOM_BYTES 256u /* what the kernel leaves before a frame of AF_XDP: it drops those that no longer fit */
#define POOL_MORE_BYTES 256u /* before and after every frame, so that they lie well in the memory's channels */
#define PAGE_BYTES 4096u

uint16_t pool_room_bytes(uint16_t mtu) {
    uint32_t room = RTE_ALIGN(RTE_PKTMBUF_HEADROOM + XDP_HEADROOM_BYTES + mtu + ETHERNET_MORE_BYTES, 128u);
    return (uint16_t)(room > RTE_MBUF_DEFAULT_BUF_SIZE ? room : RTE_MBUF_DEFAULT_BUF_SIZE);
}

uint64_t pool_frame_bytes(uint16_t mtu, uint16_t private_bytes) {
    return RTE_ALIGN(sizeof(struct rte_mbuf) + private_bytes + pool_room_bytes(mtu) + POOL_MORE_BYTES, PAGE_BYTES);
}

bool pool_may_be_dense(const char *device) {
    return strncmp(device, "net_", 4) == 0;
}

/* As rte_pktmbuf_pool_create, which knows no flags. */
struct rte_mempool *pool_create(const char *name, const struct pool_shape *shape) {
    struct rte_pktmbuf_pool_private head = {
        .mbuf_data_room_size = shape->room_bytes,
        .mbuf_priv_size = shape->private_bytes,
    };
    unsigned size = (unsigned)(sizeof(struct rte_mbuf) + shape->private_bytes + shape->room_bytes);
    struct rte_mempool *pool = rte_mempool_create_empty(name, shape->frames, size, shape->cached, sizeof head,
                                                        shape->socket, shape->dense ? RTE_MEMPOOL_F_NO_IOVA_CONTIG : 0);
    if (!pool) return NULL;
    int code = rte_mempool_set_ops_byname(pool, rte_mbuf_best_mempool_ops(), NULL);
    rte_pktmbuf_pool_init(pool, &head);
    if (code == 0) code = rte_mempool_populate_default(pool);
    if (code >= 0 && shape->dense && pool->nb_mem_chunks != 1) code = -ENOMEM;
    if (code < 0) {
        rte_mempool_free(pool);
        rte_errno = -code;
        return NULL;
    }
    rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
    return pool;
}
