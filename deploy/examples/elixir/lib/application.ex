defmodule Payments.Application do
  use Application

  def start(_type, _arguments) do
    url = URI.parse(System.fetch_env!("DATABASE_URL"))
    [user | password] = String.split(url.userinfo, ":", parts: 2)

    Supervisor.start_link(
      [
        {Postgrex,
         name: Payments.DB, hostname: url.host, port: url.port || 5432, database: String.trim_leading(url.path, "/"), username: user,
         password: List.first(password), pool_size: 16},
        {Bandit, plug: Payments.Router, ip: {127, 0, 0, 1}, port: String.to_integer(System.fetch_env!("PORT"))}
      ],
      strategy: :one_for_one
    )
  end
end
