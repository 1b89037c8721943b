defmodule Payments.Router do
  use Plug.Router
  require Logger

  plug :match
  # What is no JSON is answered 400, another content type 415, a body above 16 MB 413: dead letters.
  plug Plug.Parsers, parsers: [:json], json_decoder: Jason, length: 16_000_000
  plug :dispatch

  post "/payments", do: charge(conn, &in_transaction/2)
  post "/payments/invoiced", do: charge(conn, &invoiced/2)
  post "/payments/at-once", do: charge(conn, &at_once/2)

  defp charge(%{body_params: %{"id" => id, "cents" => cents}} = conn, work) when is_binary(id) and is_integer(cents) do
    case work.(List.first(get_req_header(conn, "onceward-token")), [id, cents]) do
      {:ok, _} ->
        send_resp(conn, 204, "")

      {:error, %DBConnection.ConnectionError{} = error} ->
        Logger.error(Exception.message(error))
        send_resp(conn, 503, "") # the database cannot be reached

      {:error, error} ->
        Logger.error(inspect(error))
        send_resp(conn, 500, "") # rolled back; Onceward reads the row and does what is right
    end
  end

  defp charge(conn, _work), do: send_resp(conn, 400, "") # the message is wrong: a dead letter

  defp in_transaction(token, order) do
    Postgrex.transaction(Payments.DB, fn db ->
      with {:ok, _} <- Postgrex.query(db, "SELECT onceward.complete($1)", [token]),
           {:ok, done} <- Postgrex.query(db, "INSERT INTO charges (order_id, cents) VALUES ($1, $2)", order) do
        done
      else
        {:error, error} -> Postgrex.rollback(db, error)
      end
    end)
  rescue
    error in DBConnection.ConnectionError -> {:error, error} # raised where BEGIN finds no connection
  end

  # The same, and an invoice in the same transaction: a sidecar with an outbox sends it once this has committed.
  defp invoiced(token, order) do
    publish = "SELECT onceward.publish('invoices', 'created', jsonb_build_object('order', $1::text, 'cents', $2::integer))"

    Postgrex.transaction(Payments.DB, fn db ->
      with {:ok, _} <- Postgrex.query(db, "SELECT onceward.complete($1)", [token]),
           {:ok, _} <- Postgrex.query(db, "INSERT INTO charges (order_id, cents) VALUES ($1, $2)", order),
           {:ok, done} <- Postgrex.query(db, publish, order) do
        done
      else
        {:error, error} -> Postgrex.rollback(db, error)
      end
    end)
  rescue
    error in DBConnection.ConnectionError -> {:error, error}
  end

  # The same as the first in one round trip: the statement is the transaction.
  defp at_once(token, order) do
    Postgrex.query(Payments.DB, """
    WITH c AS MATERIALIZED (SELECT onceward.complete($1))
    INSERT INTO charges (order_id, cents) SELECT $2, $3 FROM c
    """, [token | order])
  end
end
