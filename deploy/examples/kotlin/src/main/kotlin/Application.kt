import com.fasterxml.jackson.databind.ObjectMapper
import com.sun.net.httpserver.HttpExchange
import com.sun.net.httpserver.HttpServer
import com.zaxxer.hikari.HikariConfig
import com.zaxxer.hikari.HikariDataSource
import java.net.InetSocketAddress
import java.sql.Connection
import java.util.concurrent.Executors
import javax.sql.DataSource

data class Order(val id: String, val cents: Int)

val json = ObjectMapper()

fun inTransaction(db: Connection, token: String?, order: Order) {
    db.autoCommit = false // the pool rolls back and resets what is left open
    db.prepareStatement("SELECT onceward.complete(?)").use {
        it.setString(1, token)
        it.execute()
    }
    db.prepareStatement("INSERT INTO charges (order_id, cents) VALUES (?, ?)").use {
        it.setString(1, order.id)
        it.setInt(2, order.cents)
        it.executeUpdate()
    }
    db.commit()
}

/** The same, and an invoice in the same transaction: a sidecar with an outbox sends it once this has committed. */
fun invoiced(db: Connection, token: String?, order: Order) {
    db.autoCommit = false
    db.prepareStatement("SELECT onceward.complete(?)").use {
        it.setString(1, token)
        it.execute()
    }
    val writes = listOf("INSERT INTO charges (order_id, cents) VALUES (?, ?)",
        "SELECT onceward.publish('invoices', 'created', jsonb_build_object('order', ?::text, 'cents', ?::integer))")
    for (sql in writes) db.prepareStatement(sql).use {
        it.setString(1, order.id)
        it.setInt(2, order.cents)
        it.execute()
    }
    db.commit()
}

/** The same as the first in one round trip: with auto-commit the statement is the transaction. */
fun atOnce(db: Connection, token: String?, order: Order) {
    val sql = "WITH c AS MATERIALIZED (SELECT onceward.complete(?)) INSERT INTO charges (order_id, cents) SELECT ?, ? FROM c"
    db.prepareStatement(sql).use {
        it.setString(1, token)
        it.setString(2, order.id)
        it.setInt(3, order.cents)
        it.executeUpdate()
    }
}

fun read(exchange: HttpExchange): Order {
    val body = json.readTree(exchange.requestBody.readAllBytes())
    val cents = body.required("cents")
    require(body.required("id").isTextual && cents.isInt) { "no order" }
    return Order(body["id"].asText(), cents.intValue())
}

fun charge(exchange: HttpExchange, pool: DataSource, work: (Connection, String?, Order) -> Unit) {
    var status = 400 // what an error means from here on: the message is wrong
    try {
        val order = read(exchange)
        status = 503 // the database cannot be reached
        pool.connection.use { db ->
            status = 500 // rolled back; Onceward reads the row and does what is right
            work(db, exchange.requestHeaders.getFirst("Onceward-Token"), order)
        }
        status = 204
    } catch (error: Exception) {
        System.err.println(error.message)
    }
    exchange.sendResponseHeaders(status, -1)
    exchange.close()
}

fun main() {
    val pool = HikariDataSource(HikariConfig().apply {
        jdbcUrl = System.getenv("DATABASE_JDBC")
        maximumPoolSize = 16
        connectionTimeout = 5_000
        initializationFailTimeout = -1 // starts without its database, too
    })
    val server = HttpServer.create(InetSocketAddress("127.0.0.1", System.getenv("PORT").toInt()), 0)
    server.executor = Executors.newFixedThreadPool(64) // without one, requests are answered one at a time
    server.createContext("/payments") { charge(it, pool, ::inTransaction) }
    server.createContext("/payments/invoiced") { charge(it, pool, ::invoiced) }
    server.createContext("/payments/at-once") { charge(it, pool, ::atOnce) }
    server.start()
}
