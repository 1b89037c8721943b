using Npgsql;

var builder = WebApplication.CreateBuilder(args);
builder.WebHost.ConfigureKestrel(kestrel =>
{
    kestrel.ListenLocalhost(int.Parse(Environment.GetEnvironmentVariable("PORT")!));
    kestrel.Limits.MaxRequestBodySize = 128 << 20; // the default is 30,000,000 bytes; more is answered 413, a dead letter
    kestrel.Limits.KeepAliveTimeout = TimeSpan.FromHours(1);
});
builder.Services.AddNpgsqlDataSource(Environment.GetEnvironmentVariable("DATABASE_NPGSQL")!); // Host=…;Username=…;Database=…
var application = builder.Build();

// A body that is no order is answered 400, another content type 415: dead letters.
application.MapPost("/payments", (Order order, HttpRequest request, NpgsqlDataSource source) => Charge(order, request, source, InTransaction));
application.MapPost("/payments/invoiced", (Order order, HttpRequest request, NpgsqlDataSource source) => Charge(order, request, source, Invoiced));
application.MapPost("/payments/at-once", (Order order, HttpRequest request, NpgsqlDataSource source) => Charge(order, request, source, AtOnce));
application.Run();

static async Task<IResult> Charge(Order order, HttpRequest request, NpgsqlDataSource source, Func<NpgsqlConnection, string, Order, Task> work)
{
    if (order.Id is null) return Results.StatusCode(400); // `required` only says that it is there
    NpgsqlConnection db;
    try
    {
        db = await source.OpenConnectionAsync();
    }
    catch (NpgsqlException)
    {
        return Results.StatusCode(503); // the database cannot be reached
    }
    await using (db)
    {
        try
        {
            await work(db, request.Headers["Onceward-Token"].ToString(), order);
            return Results.NoContent();
        }
        catch (NpgsqlException error)
        {
            Console.Error.WriteLine(error.Message);
            return Results.StatusCode(500); // rolled back; Onceward reads the row and does what is right
        }
    }
}

static async Task InTransaction(NpgsqlConnection db, string token, Order order)
{
    await using var transaction = await db.BeginTransactionAsync(); // rolls back if it is disposed of without a commit
    await using var complete = new NpgsqlCommand("SELECT onceward.complete($1)", db, transaction)
    {
        Parameters = { new() { Value = token } }
    };
    await complete.ExecuteNonQueryAsync();
    await using var insert = new NpgsqlCommand("INSERT INTO charges (order_id, cents) VALUES ($1, $2)", db, transaction)
    {
        Parameters = { new() { Value = order.Id }, new() { Value = order.Cents } }
    };
    await insert.ExecuteNonQueryAsync();
    await transaction.CommitAsync();
}

// The same, and an invoice in the same transaction: a sidecar with an outbox sends it once this has committed.
static async Task Invoiced(NpgsqlConnection db, string token, Order order)
{
    await using var transaction = await db.BeginTransactionAsync();
    await using var complete = new NpgsqlCommand("SELECT onceward.complete($1)", db, transaction)
    {
        Parameters = { new() { Value = token } }
    };
    await complete.ExecuteNonQueryAsync();
    string[] writes = [
        "INSERT INTO charges (order_id, cents) VALUES ($1, $2)",
        "SELECT onceward.publish('invoices', 'created', jsonb_build_object('order', $1::text, 'cents', $2::integer))"];
    foreach (var sql in writes)
    {
        await using var write = new NpgsqlCommand(sql, db, transaction) { Parameters = { new() { Value = order.Id }, new() { Value = order.Cents } } };
        await write.ExecuteNonQueryAsync();
    }
    await transaction.CommitAsync();
}

// The same as the first in one round trip: the statement is the transaction.
static async Task AtOnce(NpgsqlConnection db, string token, Order order)
{
    await using var command = new NpgsqlCommand(
        "WITH c AS MATERIALIZED (SELECT onceward.complete($1)) INSERT INTO charges (order_id, cents) SELECT $2, $3 FROM c", db)
    {
        Parameters = { new() { Value = token }, new() { Value = order.Id }, new() { Value = order.Cents } }
    };
    await command.ExecuteNonQueryAsync();
}

record Order
{
    public required string Id { get; init; }
    public required int Cents { get; init; }
}
