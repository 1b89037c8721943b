defmodule Payments.MixProject do
  use Mix.Project

  def project, do: [app: :payments, version: "1.0.0", elixir: "~> 1.14", deps: deps()]
  def application, do: [mod: {Payments.Application, []}, extra_applications: [:logger]]

  defp deps do
    [{:bandit, "1.5.7"}, {:plug, "1.16.1"}, {:jason, "1.4.4"}, {:postgrex, "0.19.1"}]
  end
end
