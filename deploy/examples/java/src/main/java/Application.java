import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.sql.Connection;
import java.sql.SQLException;
import java.util.concurrent.Executors;
import javax.sql.DataSource;

public class Application {
    interface Work {
        void run(Connection db, String token, String id, int cents) throws SQLException;
    }

    static final ObjectMapper JSON = new ObjectMapper();

    static void inTransaction(Connection db, String token, String id, int cents) throws SQLException {
        db.setAutoCommit(false); // the pool rolls back and resets what is left open
        try (var complete = db.prepareStatement("SELECT onceward.complete(?)");
             var insert = db.prepareStatement("INSERT INTO charges (order_id, cents) VALUES (?, ?)")) {
            complete.setString(1, token);
            complete.execute();
            insert.setString(1, id);
            insert.setInt(2, cents);
            insert.executeUpdate();
            db.commit();
        }
    }

    /** The same, and an invoice in the same transaction: a sidecar with an outbox sends it once this has committed. */
    static void invoiced(Connection db, String token, String id, int cents) throws SQLException {
        db.setAutoCommit(false);
        try (var complete = db.prepareStatement("SELECT onceward.complete(?)");
             var insert = db.prepareStatement("INSERT INTO charges (order_id, cents) VALUES (?, ?)");
             var publish = db.prepareStatement(
                 "SELECT onceward.publish('invoices', 'created', jsonb_build_object('order', ?::text, 'cents', ?::integer))")) {
            complete.setString(1, token);
            complete.execute();
            insert.setString(1, id);
            insert.setInt(2, cents);
            insert.executeUpdate();
            publish.setString(1, id);
            publish.setInt(2, cents);
            publish.execute();
            db.commit();
        }
    }

    /** The same as the first in one round trip: with auto-commit the statement is the transaction. */
    static void atOnce(Connection db, String token, String id, int cents) throws SQLException {
        try (var statement = db.prepareStatement("""
                WITH c AS MATERIALIZED (SELECT onceward.complete(?))
                INSERT INTO charges (order_id, cents) SELECT ?, ? FROM c""")) {
            statement.setString(1, token);
            statement.setString(2, id);
            statement.setInt(3, cents);
            statement.executeUpdate();
        }
    }

    static void charge(HttpExchange exchange, DataSource pool, Work work) throws IOException {
        int status = 400; // what an error means from here on: the message is wrong
        try {
            JsonNode order = JSON.readTree(exchange.getRequestBody().readAllBytes());
            if (!order.required("id").isTextual() || !order.required("cents").isInt())
                throw new IllegalArgumentException("not an order");
            String id = order.get("id").asText();
            int cents = order.get("cents").intValue();
            status = 503; // the database cannot be reached
            try (Connection db = pool.getConnection()) {
                status = 500; // rolled back; Onceward reads the row and does what is right
                work.run(db, exchange.getRequestHeaders().getFirst("Onceward-Token"), id, cents);
                status = 204;
            }
        } catch (Exception error) {
            System.err.println(error.getMessage());
        }
        exchange.sendResponseHeaders(status, -1);
        exchange.close();
    }

    public static void main(String[] arguments) throws IOException {
        var config = new HikariConfig();
        config.setJdbcUrl(System.getenv("DATABASE_JDBC"));
        config.setMaximumPoolSize(16);
        config.setConnectionTimeout(5_000);
        config.setInitializationFailTimeout(-1); // starts without its database, too
        var pool = new HikariDataSource(config);
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(System.getenv("PORT"))), 0);
        server.setExecutor(Executors.newFixedThreadPool(64)); // without one, requests are answered one at a time
        server.createContext("/payments", exchange -> charge(exchange, pool, Application::inTransaction));
        server.createContext("/payments/invoiced", exchange -> charge(exchange, pool, Application::invoiced));
        server.createContext("/payments/at-once", exchange -> charge(exchange, pool, Application::atOnce));
        server.start();
    }
}
