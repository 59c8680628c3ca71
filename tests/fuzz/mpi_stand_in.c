/* A stand-in for an MPI library: the functions that the core looks up, for one process.
 * A test says which messages are there; MPI's default for a wrong rank, tag or count is
 * to end the job, and so does this.
 *
 * On the communicators TAKING a receive takes the next of those messages; on others it
 * gets contents that are made up.
 *
 * Contents that are received are written at both ends, whatever their sender has:
 * memory that is too small for what was asked is found by the sanitizer, or by the
 * heap.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HIGHEST_TAG 1000
#define MOST 64
#define ANY_TAG (-1)
#define TRUNCATED 15
#define MOST_SPOILT 1000000

static const intptr_t TAKING[] = {4, 5}; /* Peers: of collectives, and of heads */

typedef void *handle;

typedef struct {
    int length;
    char *data; /* owned */
} message;

typedef struct {
    char *data; /* where contents go; NULL of a send */
    int length, is_used, takes;
} request;

static message waiting[MOST];
static int count;
static request requests[4 * MOST];
static int contents_are_there = 1, contents_are_short;
static int ranks = 4;
static char *spoilt[MOST_SPOILT]; /* memory of receives that failed, which stays */
static size_t spoilt_count;
static long long asked;       /* bytes of contents that were asked for */
static volatile unsigned sum; /* of all that was sent: it can be read */

static void refuse(const char *what, long long value) {
    fprintf(stderr, "MPI: %s: %lld\n", what, value);
    abort();
}

int stand_in_put(const char *data, int length) {
    if (count == MOST)
        return -1;
    waiting[count].data = malloc(length > 0 ? (size_t)length : 1);
    memcpy(waiting[count].data, data, (size_t)length);
    waiting[count++].length = length;
    return 0;
}

void stand_in_set(int are_there, int are_short) {
    contents_are_there = are_there;
    contents_are_short = are_short;
}

void stand_in_set_ranks(int count_) {
    ranks = count_;
}

/* Forget everything; what is still to be received never comes. */
void stand_in_clear(void) {
    while (count > 0)
        free(waiting[--count].data);
    memset(requests, 0, sizeof requests);
    asked = 0;
}

long long stand_in_asked(void) {
    return asked;
}

static int begin(char *data, int length, int takes, handle *made) {
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++)
        if (!requests[i].is_used) {
            requests[i] = (request){data, length, 1, takes};
            *made = &requests[i];
            return 0;
        }
    return 1;
}

static void check(int length, int peer, int tag) {
    if (length < 0)
        refuse("count", length);
    if (peer < 0 || peer >= ranks)
        refuse("rank", peer);
    if (tag < 0 || tag > HIGHEST_TAG)
        refuse("tag", tag);
}

int MPI_Isend(const void *data, int length, handle type, int peer, int tag, handle comm,
              handle *made) {
    (void)type, (void)comm;
    check(length, peer, tag);
    for (int i = 0; i < length; i++)
        sum += ((const unsigned char *)data)[i];
    return begin(NULL, length, 0, made);
}

int MPI_Irecv(void *data, int length, handle type, int peer, int tag, handle comm,
              handle *made) {
    (void)type;
    int takes = (intptr_t)comm == TAKING[0] || (intptr_t)comm == TAKING[1];
    check(length, peer, takes && tag == ANY_TAG ? 0 : tag);
    asked += length;
    return begin(data, length, takes, made);
}

int MPI_Improbe(int source, int tag, handle comm, int *is_there, handle *found,
                void *status) {
    (void)source, (void)tag, (void)comm;
    *is_there = count > 0;
    *found = count > 0 ? &waiting[0] : NULL;
    *(int *)status = count > 0 ? waiting[0].length : 0;
    return 0;
}

static void forget_first(void) {
    free(waiting[0].data);
    memmove(waiting, waiting + 1, (size_t)--count * sizeof *waiting);
}

int MPI_Mrecv(void *data, int length, handle type, handle *found, void *status) {
    (void)type, (void)found;
    if (length != waiting[0].length)
        refuse("count", length);
    memcpy(data, waiting[0].data, (size_t)length);
    *(int *)status = length;
    forget_first();
    return 0;
}

/* The next message goes into the memory of a request. */
static int take(request *into, int *is_done, void *status) {
    *is_done = count > 0;
    if (!*is_done)
        return 0;
    int length = waiting[0].length, fits = length <= into->length;
    memcpy(into->data, waiting[0].data, (size_t)(fits ? length : into->length));
    *(int *)status = length;
    forget_first();
    into->is_used = 0;
    if (!fits && spoilt_count < MOST_SPOILT)
        spoilt[spoilt_count++] = into->data;
    return fits ? 0 : TRUNCATED;
}

/* Only a page at both ends: a header may have announced gigabytes. */
static void write_ends(char *data, int length) {
    int page = length < 4096 ? length : 4096;
    memset(data, 1, (size_t)page);
    memset(data + length - page, 1, (size_t)page);
}

int MPI_Test(handle *one, int *is_done, void *status) {
    request *asked_for = *one;
    if (asked_for == NULL) { /* MPI_REQUEST_NULL */
        *is_done = 1;
        return 0;
    }
    if (asked_for->takes) {
        int code = take(asked_for, is_done, status);
        if (*is_done)
            *one = NULL;
        return code;
    }
    *is_done = asked_for->data == NULL || contents_are_there;
    if (!*is_done)
        return 0;
    if (asked_for->data != NULL)
        write_ends(asked_for->data, asked_for->length);
    *(int *)status = asked_for->length - (contents_are_short && asked_for->length > 0);
    asked_for->is_used = 0;
    *one = NULL;
    return 0;
}

/* What is asked for has come. */
int MPI_Cancel(handle *one) {
    (void)one;
    return 0;
}

int MPI_Test_cancelled(const void *status, int *is_cancelled) {
    (void)status;
    *is_cancelled = 0;
    return 0;
}

int MPI_Get_count(const void *status, handle type, int *length) {
    (void)type;
    *length = *(const int *)status;
    return 0;
}

int MPI_Finalized(int *is_over) {
    *is_over = 0;
    return 0;
}

/* Of collectives of MPI, none is made here. */
int MPI_Ialltoall(const void *from, int count, handle type, void *into, int received,
                  handle its_type, handle comm, handle *made) {
    (void)from, (void)count, (void)type, (void)into, (void)received, (void)its_type;
    (void)comm, (void)made;
    return TRUNCATED;
}

int MPI_Iallgather(const void *from, int count, handle type, void *into, int received,
                   handle its_type, handle comm, handle *made) {
    return MPI_Ialltoall(from, count, type, into, received, its_type, comm, made);
}

int MPI_Ibcast(void *data, int count, handle type, int root, handle comm,
               handle *made) {
    (void)data, (void)count, (void)type, (void)root, (void)comm, (void)made;
    return TRUNCATED;
}
