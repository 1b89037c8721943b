#pragma once

#include <stdbool.h>
#include <stddef.h>

/* An intrusive doubly linked list that knows its length. An element is in at most one list by one link. */
struct link {
    struct link *prev, *next;
};

struct list {
    struct link head;
    size_t len;
};

#define container_of(p, type, member) ((type *)((char *)(p)-offsetof(type, member)))

static inline void list_init(struct list *l)
{
    l->head.prev = l->head.next = &l->head;
    l->len = 0;
}

static inline void list_push(struct list *l, struct link *k)
{
    k->prev = l->head.prev;
    k->next = &l->head;
    k->prev->next = k;
    l->head.prev = k;
    l->len++;
}

static inline void list_remove(struct list *l, struct link *k)
{
    k->prev->next = k->next;
    k->next->prev = k->prev;
    k->prev = k->next = NULL;
    l->len--;
}

static inline struct link *list_first(struct list *l)
{
    return l->len ? l->head.next : NULL;
}

/* Walks a list; the body may remove the current element. */
#define list_each(l, k)                                                                                      \
    for (struct link *k = (l)->head.next, *k##_next = k->next; k != &(l)->head;                              \
         k = k##_next, k##_next = k->next)
