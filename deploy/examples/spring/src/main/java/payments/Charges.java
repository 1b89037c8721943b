package payments;

import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.stereotype.Service;
import org.springframework.transaction.annotation.Transactional;

/** A bean of its own: @Transactional works through the proxy only, so not on a method that is called from the same class. */
@Service
public class Charges {
    private final JdbcTemplate jdbc;

    Charges(JdbcTemplate jdbc) {
        this.jdbc = jdbc;
    }

    /** Commits when it returns, so before the controller answers. Repositories and JPA writes in here belong to the same transaction. */
    @Transactional
    public void charge(String token, Order order) {
        jdbc.queryForObject("SELECT onceward.complete(?)", String.class, token);
        jdbc.update("INSERT INTO charges (order_id, cents) VALUES (?, ?)", order.id(), order.cents());
    }

    /** The same, and an invoice in the same transaction: a sidecar with an outbox sends it once this has committed. */
    @Transactional
    public void chargeInvoiced(String token, Order order) {
        charge(token, order);
        jdbc.queryForObject("SELECT onceward.publish('invoices', 'created', jsonb_build_object('order', ?::text, 'cents', ?::integer))",
            String.class, order.id(), order.cents());
    }

    /** The same as the first in one round trip: without @Transactional the statement is the transaction. */
    public void chargeAtOnce(String token, Order order) {
        jdbc.update("""
            WITH c AS MATERIALIZED (SELECT onceward.complete(?))
            INSERT INTO charges (order_id, cents) SELECT ?, ? FROM c""", token, order.id(), order.cents());
    }
}
