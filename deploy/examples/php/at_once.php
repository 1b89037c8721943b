<?php
// Completion and work in one statement: one round trip, and a connection that php-fpm keeps from request to request.
set_error_handler(fn($level, $text) => throw new ErrorException($text));
$status = 400;  // what an error means from here on: the message is wrong
try {
    $order = json_decode(file_get_contents('php://input'), false, 512, JSON_THROW_ON_ERROR);
    if (!is_string($order->id) || !is_int($order->cents))
        throw new Exception('not an order: id must be a string, cents an integer');
    $values = [$_SERVER['HTTP_ONCEWARD_TOKEN'], $order->id, $order->cents];
    $status = 503;  // the database cannot be reached
    $db = new PDO(getenv('DATABASE_PDO'), null, null, [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION, PDO::ATTR_PERSISTENT => true]);
    $status = 500;  // rolled back; Onceward reads the row and does what is right
    $db->prepare('WITH c AS MATERIALIZED (SELECT onceward.complete(?))
        INSERT INTO charges (order_id, cents) SELECT ?, ? FROM c')->execute($values);
    $status = 204;
} catch (Throwable $error) {
    error_log($error->getMessage());
}
http_response_code($status);
