/* Graphs are launched as often as one likes. */
#include "graph.h"

struct graph *graph_new(void) {
    return handle_new(ANY_GRAPH, sizeof(struct graph));
}

void graph_add(struct graph *self, struct node *node) {
    self->nodes = realloc(self->nodes, (size_t)(self->node_count + 1) * sizeof node);
    self->nodes[self->node_count++] = node;
}

void graph_clear_marks(struct graph *self) {
    for (int32_t i = 0; i < self->node_count; i++)
        self->nodes[i]->is_marked = false;
}

void node_mark(struct node *self) {
    if (self->is_marked)
        return;
    self->is_marked = true;
    for (int32_t i = 0; i < self->before_count; i++)
        node_mark(self->before[i]);
}

/* ---- instances ---- */

#define AUTO_FREE_ON_LAUNCH 1

static bool is_of(const struct node *node, const char *name) {
    return strcmp(node->work.name, name) == 0;
}

static void find_unfreed(struct graph *self) {
    self->unfreed = calloc((size_t)self->node_count + 1, sizeof *self->unfreed);
    for (int32_t i = 0; i < self->node_count; i++) {
        bool is_freed = !is_of(self->nodes[i], "cuMemAllocAsync");
        for (int32_t j = i + 1; j < self->node_count && !is_freed; j++)
            is_freed = is_of(self->nodes[j], "cuMemFreeAsync") &&
                       self->nodes[j]->work.memory == self->nodes[i]->work.memory;
        if (!is_freed)
            self->unfreed[self->unfreed_count++] = self->nodes[i]->work.memory;
    }
}

/* A graph whose allocations of the last launch nobody has freed cannot be launched. */
static bool may_launch(const struct graph *exec) {
    if (!exec->was_launched || exec->frees_on_launch)
        return true;
    for (int32_t i = 0; i < exec->unfreed_count; i++)
        if (!exec->unfreed[i]->is_freed && !exec->unfreed[i]->is_discounted)
            return false;
    return true;
}

/* They share the nodes: nothing here changes a graph after its capture. */
static CUresult instantiate(CUgraphExec *exec, CUgraph graph,
                            unsigned long long flags) {
    if (!handle_is(graph, ANY_GRAPH))
        return refuse(INVALID_HANDLE, "%p is no graph", (void *)graph);
    struct graph *new = handle_new(ANY_EXEC, sizeof *new);
    int32_t branches = 1;
    for (int32_t i = 0; i < graph->node_count; i++)
        if (graph->nodes[i]->branch >= branches)
            branches = graph->nodes[i]->branch + 1;
    new->nodes = graph->nodes;
    new->node_count = graph->node_count;
    new->timelines = calloc((size_t)branches, sizeof *new->timelines);
    new->times = calloc((size_t)branches, sizeof *new->times);
    for (int32_t i = 0; i < branches; i++)
        new->timelines[i] = timeline_new();
    find_unfreed(new);
    new->frees_on_launch = flags & AUTO_FREE_ON_LAUNCH;
    *exec = new;
    return SUCCESS;
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
                                         unsigned long long flags) {
    CALL(SAFE, "cuGraphInstantiate")
    return call_end(&call, instantiate(exec, graph, flags));
}

API CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *node,
                                   char *text, size_t size) {
    CALL(SAFE, "cuGraphInstantiate")(void) node, (void)text, (void)size;
    return call_end(&call, instantiate(exec, graph, 0));
}

API CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                          void *parameters) {
    CALL(SAFE, "cuGraphInstantiate")(void) parameters;
    return call_end(&call, instantiate(exec, graph, 0));
}

static void run_node(struct graph *exec, struct node *node, const vclock *start) {
    op op = {.timeline = exec->timelines[node->branch], .device = node->device};
    op.peers = node->peers;
    op.call = call_number();
    clock_copy(&op.now, start);
    for (int32_t i = 0; i < node->before_count; i++)
        clock_merge(&op.now, &node->before[i]->now);
    op.time = ++exec->times[node->branch];
    clock_set(&op.now, op.timeline, op.time);
    action_hold(&node->work, &op);
    run_action(&node->work, &op);
    clock_copy(&node->now, &op.now);
    clock_free(&op.now);
}

static CUresult exec_run(action *self, op *op) {
    struct graph *exec = self->exec;
    vclock start = {0};
    deferred_flush(&op->now);
    clock_copy(&start, &op->now);
    clock_merge(&start, &exec->last);
    for (int32_t i = 0; i < exec->node_count; i++) {
        run_node(exec, exec->nodes[i], &start);
        clock_merge(&op->now, &exec->nodes[i]->now);
    }
    clock_copy(&exec->last, &op->now);
    clock_free(&start);
    return SUCCESS;
}

/* Code that was unloaded since the capture is not there to run. */
static CUresult check_kernels(const struct graph *exec) {
    for (int32_t i = 0; i < exec->node_count; i++) {
        const action *work = &exec->nodes[i]->work;
        if (work->run == kernel_run && !function_is(work->kernel->function))
            return refuse(INVALID_HANDLE, "a graph with %s, whose module was unloaded",
                          work->name);
    }
    return SUCCESS;
}

API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    CALL(SAFE, "cuGraphLaunch", (uintptr_t)stream)
    struct stream *self;
    if (!handle_is(exec, ANY_EXEC))
        return call_end(&call, refuse(INVALID_HANDLE, "%p is no instance of a graph",
                                      (void *)exec));
    CUresult result = stream_find(stream, &self);
    if (result == SUCCESS)
        result = check_kernels(exec);
    if (result == SUCCESS && !may_launch(exec))
        result = INVALID_VALUE;
    if (result == SUCCESS) {
        exec->was_launched = true;
        action work = {exec_run, "cuGraphLaunch", .is_prompt = true, .exec = exec};
        result = submit(self, &work);
    }
    return call_end(&call, result);
}

API CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    CALL(SAFE, "cuGraphUpload", (uintptr_t)stream)
    return call_end(&call, handle_is(exec, ANY_EXEC)
                               ? SUCCESS
                               : refuse(INVALID_HANDLE, "no instance of a graph"));
}

API CUresult cuGraphDestroy(CUgraph graph) {
    CALL(SAFE, "cuGraphDestroy")
    if (!handle_is(graph, ANY_GRAPH))
        return call_end(&call, refuse(INVALID_HANDLE, "no graph to destroy"));
    handle_retire(graph, ANY_GRAPH);
    return call_end(&call, SUCCESS);
}

API CUresult cuGraphExecDestroy(CUgraphExec exec) {
    CALL(SAFE, "cuGraphExecDestroy")
    if (!handle_is(exec, ANY_EXEC))
        return call_end(&call, refuse(INVALID_HANDLE, "no instance to destroy"));
    handle_retire(exec, ANY_EXEC);
    return call_end(&call, SUCCESS);
}

API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    CALL(SAFE, "cuGraphGetNodes")
    if (!handle_is(graph, ANY_GRAPH))
        return call_end(&call, refuse(INVALID_HANDLE, "no graph"));
    for (size_t i = 0; nodes != NULL && i < *count && i < (size_t)graph->node_count;
         i++)
        nodes[i] = graph->nodes[i];
    *count = (size_t)graph->node_count;
    return call_end(&call, SUCCESS);
}
