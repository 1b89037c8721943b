"""The rig itself: what the other tests stand on must be able to fail."""


def test_the_servers_answer(postgres, rabbitmq):
    assert postgres.query("SELECT 1") == [(1,)]
    connection = rabbitmq.connect()
    assert connection.is_open
    connection.close()
