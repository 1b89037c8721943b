import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.sql.Connection;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.function.Function;
import javax.sql.DataSource;

/** Several messages in a request, one transaction for all of them. Needs `forward.batch` in the sidecar's configuration. */
public class Batch {
    record Charge(String token, String order, int cents) {}

    interface Work {
        void run(Connection db, List<Charge> charges) throws SQLException;
    }

    static final ObjectMapper JSON = new ObjectMapper();

    static java.sql.Array array(Connection db, String type, List<Charge> charges, Function<Charge, Object> part) throws SQLException {
        return db.createArrayOf(type, charges.stream().map(part).toArray());
    }

    static void allOrNothing(Connection db, List<Charge> charges) throws SQLException {
        try (var complete = db.prepareStatement("SELECT onceward.complete_all(?)");
             var insert = db.prepareStatement("INSERT INTO charges (order_id, cents) SELECT * FROM unnest(?::text[], ?::integer[])")) {
            complete.setArray(1, array(db, "text", charges, Charge::token));
            complete.execute(); // throws if one token is not valid any more
            insert.setArray(1, array(db, "text", charges, Charge::order));
            insert.setArray(2, array(db, "integer", charges, Charge::cents));
            insert.executeUpdate();
        }
    }

    static void validOnes(Connection db, List<Charge> charges) throws SQLException {
        try (var insert = db.prepareStatement("""
                INSERT INTO charges (order_id, cents) SELECT m.order_id, m.cents
                FROM onceward.complete_valid(?::text[]) v (token)
                JOIN unnest(?::text[], ?::text[], ?::integer[]) m (token, order_id, cents) USING (token)""")) {
            insert.setArray(1, array(db, "text", charges, Charge::token));
            insert.setArray(2, array(db, "text", charges, Charge::token));
            insert.setArray(3, array(db, "text", charges, Charge::order));
            insert.setArray(4, array(db, "integer", charges, Charge::cents));
            insert.executeUpdate();
        }
    }

    static int charge(DataSource pool, List<Charge> charges, Work work) {
        int status = 503; // the database cannot be reached
        try (Connection db = pool.getConnection()) {
            status = 500;
            db.setAutoCommit(false); // the pool rolls back and resets what is left open
            work.run(db, charges);
            db.commit();
            return 200;
        } catch (Exception error) {
            System.err.println(error.getMessage());
            return status;
        }
    }

    static void answer(HttpExchange exchange, DataSource pool, Work work, boolean namesFailures) throws IOException {
        ObjectNode answer = JSON.createObjectNode();
        var failures = answer.putArray("failures");
        var charges = new ArrayList<Charge>();
        int count = 0, status = 500;
        try {
            JsonNode messages = JSON.readTree(exchange.getRequestBody().readAllBytes()).path("messages");
            if (!messages.isArray()) throw new IOException("it has no messages");
            for (JsonNode message : messages) {
                JsonNode order = message.path("body"); // absent where the body is not JSON that every reader takes: "body_base64" then
                if (order.path("id").isTextual() && order.path("cents").isInt())
                    charges.add(new Charge(message.get("token").asText(), order.get("id").asText(), order.get("cents").intValue()));
                else
                    failures.addObject().put("id", message.get("id").asText()).put("status", 422).put("error", "not an order");
            }
            count = messages.size();
            // 422 for all: Onceward looks for the wrong one.
            status = failures.isEmpty() || namesFailures ? charge(pool, charges, work) : 422;
        } catch (IOException | RuntimeException error) { // not answering would look like a crash
            System.err.println("not a batch: " + error.getMessage());
        }
        byte[] body = JSON.writeValueAsBytes(answer);
        exchange.getResponseHeaders().set("Onceward-Batch", String.valueOf(count)); // all succeeded, but for the named ones
        exchange.sendResponseHeaders(status, body.length);
        exchange.getResponseBody().write(body);
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
        server.createContext("/payments/all", exchange -> answer(exchange, pool, Batch::allOrNothing, false));
        server.createContext("/payments/valid", exchange -> answer(exchange, pool, Batch::validOnes, true));
        server.start();
    }
}
