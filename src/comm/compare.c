/* Compares lists of strings, such as options, variables or file names, of each rank with those of
 * rank 0. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "comm/comm.h"

/* A list of strings, each with its final 0 byte. */
typedef moert_text_stream entries;

static moert_status print_entries(moert_comm_printer *print, const void *object, entries *list) {
    MOERT_TRY(moert_text_open("the list of values that the ranks must share", list));
    print(object, list->file);
    return moert_text_close(list);
}

/* *theirs = rank 0's entries. Collective. */
static moert_status share_entries(moert_comm *comm, const entries *mine, entries *theirs) {
    theirs->bytes = mine->bytes;
    MOERT_TRY(moert_comm_broadcast(comm, 0, &theirs->bytes, sizeof theirs->bytes));
    MOERT_TRY(moert_comm_agree(comm, moert_alloc(&theirs->text, theirs->bytes, 1)));
    if (moert_comm_rank(comm) == 0)
        memcpy(theirs->text, mine->text, theirs->bytes);
    return moert_comm_broadcast(comm, 0, theirs->text, theirs->bytes);
}

/* Returns the entry at *at, and sets *at to the next entry. Past the last entry, returns a text
 * that says so. */
static const char *next_entry(const entries *list, size_t *at) {
    const char *entry = list->text + *at;
    if (*at == list->bytes)
        return "nothing more";
    *at += strlen(entry) + 1;
    return entry;
}

static moert_status find_difference(const entries *mine, const entries *theirs, moert_status code,
                                    const char *rule) {
    size_t here = 0, there = 0;
    while (here < mine->bytes || there < theirs->bytes) {
        const char *own = next_entry(mine, &here), *first = next_entry(theirs, &there);
        if (strcmp(own, first) != 0)
            return moert_error_record(code, __func__, __LINE__,
                                      "has %.300s, but rank 0 has %.300s; %s", own, first, rule);
    }
    return MOERT_OK;
}

moert_status moert_comm_compare(moert_comm *comm, moert_comm_printer *print, const void *object,
                                moert_status code, const char *rule) {
    entries mine = {0}, theirs = {0};
    moert_status status;
    if (moert_comm_size(comm) == 1)
        return MOERT_OK;
    MOERT_TRY_OR(done, moert_comm_agree(comm, print_entries(print, object, &mine)));
    MOERT_TRY_OR(done, share_entries(comm, &mine, &theirs));
    status = moert_comm_agree(comm, find_difference(&mine, &theirs, code, rule));
done:
    MOERT_FREE(theirs.text, mine.text);
    return status;
}
