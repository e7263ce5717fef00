/* Balances the ranks' rows, by a local search from the present placement. */
#include "plan/balance.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

/* An exchange must save 1/EXCHANGE_WORTH of the busiest rank's rows, and a clone 1/CLONE_WORTH. An
 * exchange between nodes must save 1/GATHER_WORTH of the rows of the two experts. */
enum { EXCHANGE_WORTH = 100, CLONE_WORTH = 30, GATHER_WORTH = 4 };

/* State of the search: the placement that it improves, and its loads. */
typedef struct search {
    const moert_expert_map *map; /* the present placement; only its sizes are used */
    const uint64_t *rows;        /* [E] */
    uint32_t *expert;            /* [slots of all ranks] */
    uint64_t *members;           /* [E] number of members of an expert's chain: the expert and
                                    its clones */
    uint64_t *load;              /* [ranks] rows */
} search;

static uint32_t expert_in(const search *s, size_t slot) {
    return moert_expert_of(s->expert[slot]);
}

static uint64_t rows_in(const search *s, size_t slot) {
    const uint32_t e = expert_in(s, slot);
    return e != MOERT_NO_EXPERT ? s->rows[e] / s->members[e] : 0;
}

/* Counts the members of the chains, and the rows of the ranks. */
static void count(search *s) {
    memset(s->members, 0, s->map->experts * sizeof *s->members);
    for (size_t i = 0; i < moert_expert_map_slots(s->map); i++)
        if (s->expert[i] != MOERT_NO_EXPERT)
            s->members[expert_in(s, i)]++;
    for (size_t r = 0; r < s->map->ranks; r++) {
        s->load[r] = 0;
        for (size_t i = s->map->first[r]; i < s->map->first[r + 1]; i++)
            s->load[r] += rows_in(s, i);
    }
}

static moert_status begin(const moert_expert_map *map, const uint64_t *rows, uint32_t *expert,
                          search *s) {
    *s = (search){.map = map, .rows = rows, .expert = expert};
    MOERT_TRY(MOERT_NEW_ARRAY(&s->members, map->experts + map->ranks));
    s->load = s->members + map->experts;
    count(s);
    return MOERT_OK;
}

static size_t busiest_of(const search *s) {
    size_t busiest = 0;
    for (size_t r = 1; r < s->map->ranks; r++)
        busiest = s->load[r] > s->load[busiest] ? r : busiest;
    return busiest;
}

static uint64_t sum_of(const search *s) {
    uint64_t sum = 0;
    for (size_t e = 0; e < s->map->experts; e++)
        sum += s->rows[e];
    return sum;
}

/* Whether a slot of `rank`, other than slot `but`, holds expert e or a clone of it. */
static bool has(const search *s, size_t rank, uint32_t e, size_t but) {
    for (size_t i = s->map->first[rank]; i < s->map->first[rank + 1]; i++)
        if (i != but && expert_in(s, i) == e)
            return true;
    return false;
}

/* ---- exchanges ---- */

/* Two slots whose experts change places. */
typedef struct exchange {
    size_t here, there;
    uint64_t larger; /* find_exchange: rows of the busier of the two ranks after the exchange */
    int64_t saved;   /* find_gathering: how many fewer rows then travel between nodes */
} exchange;

/* Whether the contents of slot `from` may go to slot `to` of a rank. */
static bool fits(const search *s, size_t from, size_t rank, size_t to) {
    const uint32_t e = expert_in(s, from);
    return e == MOERT_NO_EXPERT || s->members[e] == 1 || !has(s, rank, e, to);
}

/* Finds the exchange between a slot of the busiest rank and one of another rank that leaves the
 * fewest rows to the busier of the two. If no exchange is an improvement, `larger` of the result is
 * load[busiest]. */
static exchange find_exchange(const search *s, size_t busiest) {
    const uint32_t *first = s->map->first;
    exchange best = {.larger = s->load[busiest]};
    for (size_t a = first[busiest]; a < first[busiest + 1]; a++)
        for (size_t r = 0; r < s->map->ranks; r++)
            for (size_t b = first[r]; b < first[r + 1]; b++) {
                const uint64_t gives = rows_in(s, a), takes = rows_in(s, b);
                if (r == busiest || gives <= takes)
                    continue;
                const uint64_t here = s->load[busiest] - gives + takes,
                               there = s->load[r] - takes + gives;
                const uint64_t larger = here > there ? here : there;
                if (larger < best.larger && fits(s, a, r, b) && fits(s, b, busiest, a))
                    best = (exchange){.here = a, .there = b, .larger = larger};
            }
    return best;
}

static void exchange_two(search *s, const exchange *two) {
    const uint32_t moved = s->expert[two->here];
    s->expert[two->here] = s->expert[two->there];
    s->expert[two->there] = moved;
    count(s);
}

/* Exchanges slots as long as each exchange saves more than 1/EXCHANGE_WORTH of the busiest rank's
 * rows. */
static void exchange_slots(search *s) {
    for (;;) {
        const size_t busiest = busiest_of(s);
        const exchange best = find_exchange(s, busiest);
        if (s->load[busiest] - best.larger <= s->load[busiest] / EXCHANGE_WORTH)
            break;
        exchange_two(s, &best);
    }
}

/* ---- clones ---- */

/* Empties the slots of clones that are not needed. A clone is not needed if without it each member
 * of the chain would have at most half of the mean rows of a rank. If `clones` is false, no clone
 * is needed. */
static void drop_clones(search *s, bool clones) {
    const uint64_t sum = sum_of(s);
    for (size_t i = 0; i < moert_expert_map_slots(s->map); i++) {
        const uint32_t e = expert_in(s, i);
        const bool is_clone = e != MOERT_NO_EXPERT && s->expert[i] != e;
        if (is_clone && (!clones || 2 * s->map->ranks * s->rows[e] <= sum * (s->members[e] - 1))) {
            s->expert[i] = MOERT_NO_EXPERT;
            count(s);
        }
    }
}

/* The slot of a rank with the most rows. */
static size_t hottest_of(const search *s, size_t rank) {
    size_t hottest = s->map->first[rank];
    for (size_t i = hottest; i < s->map->first[rank + 1]; i++)
        hottest = rows_in(s, i) > rows_in(s, hottest) ? i : hottest;
    return hottest;
}

/* An empty slot of a rank; SIZE_MAX if there is none. */
static size_t empty_slot(const search *s, size_t rank) {
    for (size_t i = s->map->first[rank]; i < s->map->first[rank + 1]; i++)
        if (s->expert[i] == MOERT_NO_EXPERT)
            return i;
    return SIZE_MAX;
}

/* Moves the expert or clone with the fewest rows of a full rank to another rank. Returns the slot
 * that is then empty; SIZE_MAX if no other rank has room for it. */
static size_t make_room(search *s, size_t rank) {
    size_t from = s->map->first[rank];
    for (size_t i = from; i < s->map->first[rank + 1]; i++)
        from = rows_in(s, i) < rows_in(s, from) ? i : from;
    for (size_t r = 0; r < s->map->ranks; r++) {
        const size_t to = r != rank ? empty_slot(s, r) : SIZE_MAX;
        if (to == SIZE_MAX || !fits(s, from, r, to))
            continue;
        s->expert[to] = s->expert[from];
        s->expert[from] = MOERT_NO_EXPERT;
        return from;
    }
    return SIZE_MAX;
}

/* Adds a clone of an expert on the rank that has the fewest rows among those without a member.
 * False if that rank has no slot for the clone. */
static bool add_clone(search *s, uint32_t e) {
    size_t rank = SIZE_MAX;
    for (size_t r = 0; r < s->map->ranks; r++)
        if (!has(s, r, e, SIZE_MAX) && (rank == SIZE_MAX || s->load[r] < s->load[rank]))
            rank = r;
    if (rank == SIZE_MAX)
        return false;
    size_t slot = empty_slot(s, rank);
    slot = slot == SIZE_MAX ? make_room(s, rank) : slot;
    if (slot == SIZE_MAX)
        return false;
    s->expert[slot] = e | MOERT_EXPERT_CLONE;
    count(s);
    return true;
}

/* Clones the hottest expert of the busiest rank, repeatedly. Stops when the busiest rank is at most
 * 1/CLONE_WORTH above the mean, or a clone would save less than 1/CLONE_WORTH of that rank's
 * rows. */
static moert_status add_clones(search *s) {
    const size_t slots = moert_expert_map_slots(s->map);
    const uint64_t enough = sum_of(s) / s->map->ranks * (CLONE_WORTH + 1) / CLONE_WORTH;
    uint32_t *before;
    MOERT_TRY(moert_alloc(&before, slots, sizeof *before));
    for (;;) {
        const size_t busiest = busiest_of(s);
        const uint64_t most = s->load[busiest];
        memcpy(before, s->expert, slots * sizeof *before);
        if (most <= enough || !add_clone(s, expert_in(s, hottest_of(s, busiest))))
            break;
        exchange_slots(s);
        if (s->load[busiest_of(s)] <= most - most / CLONE_WORTH)
            continue;
        memcpy(s->expert, before, slots * sizeof *before);
        count(s);
        break;
    }
    free(before);
    return MOERT_OK;
}

moert_status moert_expert_map_balance(const moert_expert_map *map, const uint64_t *rows,
                                      bool clones, uint32_t *expert) {
    search s;
    memcpy(expert, map->expert, moert_expert_map_slots(map) * sizeof *expert);
    MOERT_TRY(begin(map, rows, expert, &s));
    drop_clones(&s, clones);
    exchange_slots(&s);
    const moert_status status = clones ? add_clones(&s) : MOERT_OK;
    free(s.members);
    return status;
}

/* ---- nodes ---- */

/* Whether a slot may go to another node: it is empty, or holds an expert without clones. */
static bool is_movable(const search *s, size_t slot) {
    const uint32_t e = expert_in(s, slot);
    return e == MOERT_NO_EXPERT || s->members[e] == 1;
}

/* The rows that no longer travel if the contents of a slot go from one node to another. */
static int64_t saved_by(const search *s, const moert_row_sources *from, size_t slot, size_t node,
                        size_t to) {
    const size_t e = expert_in(s, slot), experts = s->map->experts;
    return e == MOERT_NO_EXPERT
               ? 0
               : (int64_t)(from->rows[to * experts + e] - from->rows[node * experts + e]);
}

/* Finds the exchange between two ranks on different nodes that saves most, among those that leave
 * neither rank more than `limit` rows. Stores this exchange in *best if it saves more rows than
 * *best. */
static void find_gathering(const search *s, const moert_row_sources *from, size_t r, size_t q,
                           uint64_t limit, exchange *best) {
    const uint32_t *first = s->map->first;
    for (size_t a = first[r]; a < first[r + 1]; a++)
        for (size_t b = first[q]; b < first[q + 1]; b++) {
            const uint64_t here = rows_in(s, a), there = rows_in(s, b);
            const int64_t saved = saved_by(s, from, a, from->node[r], from->node[q]) +
                                  saved_by(s, from, b, from->node[q], from->node[r]);
            if (saved > best->saved && (uint64_t)saved * GATHER_WORTH >= here + there &&
                s->load[r] - here + there <= limit && s->load[q] - there + here <= limit &&
                is_movable(s, a) && is_movable(s, b))
                *best = (exchange){.here = a, .there = b, .saved = saved};
        }
}

static void gather(search *s, const moert_row_sources *from) {
    const size_t ranks = s->map->ranks;
    const uint64_t busiest = s->load[busiest_of(s)], limit = busiest + busiest / EXCHANGE_WORTH;
    for (;;) {
        exchange best = {0};
        for (size_t r = 0; r < ranks; r++)
            for (size_t q = r + 1; q < ranks; q++)
                if (from->node[r] != from->node[q])
                    find_gathering(s, from, r, q, limit, &best);
        if (best.saved == 0)
            break;
        exchange_two(s, &best);
    }
}

moert_status moert_expert_map_gather(const moert_expert_map *map, const uint64_t *rows,
                                     const moert_row_sources *from, uint32_t *expert) {
    search s;
    MOERT_TRY(begin(map, rows, expert, &s));
    gather(&s, from);
    free(s.members);
    return MOERT_OK;
}

double moert_expert_map_crossing(const moert_expert_map *map, const uint32_t *expert,
                                 const moert_row_sources *from) {
    double crossing = 0.0, all = 0.0;
    for (size_t r = 0; r < map->ranks; r++)
        for (size_t i = map->first[r]; i < map->first[r + 1]; i++)
            for (size_t n = 0; expert[i] < map->experts && n < from->nodes; n++) {
                const double rows = (double)from->rows[n * map->experts + expert[i]];
                crossing += n != from->node[r] ? rows : 0.0;
                all += rows;
            }
    return all > 0.0 ? crossing / all : 0.0;
}

/* ---- loads ---- */

/* The rows of a slot in a placement. */
static double share_of(const moert_expert_map *map, const uint32_t *expert, const uint64_t *rows,
                       size_t slot) {
    const uint32_t e = moert_expert_of(expert[slot]);
    size_t members = 0;
    if (e == MOERT_NO_EXPERT)
        return 0.0;
    for (size_t i = 0; i < moert_expert_map_slots(map); i++)
        members += moert_expert_of(expert[i]) == e;
    return (double)rows[e] / (double)members;
}

double moert_expert_map_load(const moert_expert_map *map, const uint32_t *expert,
                             const uint64_t *rows) {
    double most = 0.0, sum = 0.0;
    for (size_t e = 0; e < map->experts; e++)
        sum += (double)rows[e];
    for (size_t r = 0; r < map->ranks; r++) {
        double load = 0.0;
        for (size_t i = map->first[r]; i < map->first[r + 1]; i++)
            load += share_of(map, expert, rows, i);
        most = load > most ? load : most;
    }
    return sum > 0.0 ? most * (double)map->ranks / sum : 1.0;
}
