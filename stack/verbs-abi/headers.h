/* What stock programs are compiled against (packages libibverbs-dev and librdmacm-dev). */
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
