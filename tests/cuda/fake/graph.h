/* Graphs: actions with what comes before them. */
#ifndef FAKE_GRAPH_H_
#define FAKE_GRAPH_H_

#include "fake.h"

struct node {
    action work;
    struct node **before;
    int32_t before_count, branch, device;
    uint32_t peers;
    bool is_marked;
    vclock now; /* of the last launch */
};

struct graph {
    struct node **nodes; /* in an order in which they can run */
    int32_t node_count;
    int32_t *timelines; /* one for each branch; of an instance only */
    uint32_t *times;
    block **unfreed; /* what it allocates and does not free; of an instance only */
    int32_t unfreed_count;
    bool frees_on_launch, was_launched;
    vclock last; /* two launches of an instance never overlap */
};

struct capture {
    struct capture *next;
    uint64_t id;
    int mode;
    uintptr_t thread;
    bool is_broken;
    struct graph *graph;
    struct stream **streams; /* the first is where it began */
    int32_t stream_count;
};

struct graph *graph_new(void);
void graph_add(struct graph *self, struct node *node);
void graph_clear_marks(struct graph *self);
void node_mark(struct node *self); /* it and all before it */

#endif /* FAKE_GRAPH_H_ */
