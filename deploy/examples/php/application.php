<?php
set_error_handler(fn($level, $text) => throw new ErrorException($text));  // a missing field is an error, too
$status = 400;  // what an error means from here on: the message is wrong
try {
    $order = json_decode(file_get_contents('php://input'), false, 512, JSON_THROW_ON_ERROR);
    $charge = [$order->id, $order->cents];
    if (!is_string($charge[0]) || !is_int($charge[1]))
        throw new Exception('not an order: id must be a string, cents an integer');
    $status = 503;  // the database cannot be reached
    $db = new PDO(getenv('DATABASE_PDO'), null, null, [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
    $status = 500;  // rolled back; Onceward reads the row and does what is right
    $db->beginTransaction();  // one transaction: both, or neither
    $db->prepare('SELECT onceward.complete(?)')->execute([$_SERVER['HTTP_ONCEWARD_TOKEN']]);
    $db->prepare('INSERT INTO charges (order_id, cents) VALUES (?, ?)')->execute($charge);
    $db->commit();
    $status = 204;
} catch (Throwable $error) {
    error_log($error->getMessage());
}
http_response_code($status);
